"""Find docstrings that are no sentences: ``python -m tools.check_docstrings FILE...`` prints them.

Docstrings of attributes and constants are checked, too. Ruff's D401 checks for imperatives in functions.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

_FRAGMENT = re.compile(r"\s*(Of|Whether|Those|Which|For|By|In|As)(?![-\w])")
_VERB = re.compile(
    r"\s*(Are|Begins|Collects|Contains|Decodes|Emits|Finds|Gives|Has|Holds|Is|Keeps|Listens|Makes|Passes|Reads|"
    r"Rejects|Removes|Renders|Runs|Says|Sends|Serves|Shows|Takes|Tells|Writes)(?![-\w])"
)
_NO_IMPERATIVE = re.compile(r"\s*(``|\S+'s|Above|Beyond|Nearly|Our|The|There|Triton|Until|While)(?![-\w])")
"""First words of functions' docstrings that Ruff's D401 does not find. Nouns describe properties, and tests
state what they show."""


def fragments(source: str, *, of_tests: bool = False) -> Iterator[tuple[int, str]]:
    """Yield line and first word of each docstring that begins with a wrong one."""
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        for index, each in enumerate(body if isinstance(body, list) else ()):
            match each:
                case ast.Expr(value=ast.Constant(value=str(text))):
                    wrong = _FRAGMENT.match(text)
                    if index or not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                        wrong = wrong or _VERB.match(text)
                    elif not (of_tests or any("property" in ast.unparse(by) for by in node.decorator_list)):
                        wrong = wrong or _NO_IMPERATIVE.match(text)
                    if wrong:
                        yield each.lineno, wrong[1]


if __name__ == "__main__":
    found = [
        f"{path}:{line}: {word}"
        for path in sys.argv[1:]
        for line, word in fragments(Path(path).read_text(), of_tests=path.startswith("tests/"))
    ]
    sys.exit("\n".join(found) or 0)
