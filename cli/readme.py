"""Keeps the README's generated parts true: ``python -m cli.readme`` writes them, ``--check`` compares.

A part stands between ``<!-- NAME:begin -->`` and ``<!-- NAME:end -->``.
"""

from __future__ import annotations

import argparse
import inspect
import os
import re
import sys
import typing
from collections.abc import Callable, Sequence

from cli.main import make_parser
from cli.openapi_schema import ROOT
from errors import markdown_table
from runner.run import Runner
from runner.settings import VARIABLES, Settings

README = ROOT / "README.md"
_HELP_WIDTH = "100"


def help_text() -> str:
    """``cog-triton --help`` and the help of each command, as a terminal of 100 columns shows them."""
    os.environ["COLUMNS"] = _HELP_WIDTH
    parser, commands = make_parser()
    texts = [parser.format_help(), *(command.format_help() for command in commands)]
    return "```text\n" + "\n".join(text.strip() + "\n" for text in texts) + "```"


def input_table() -> str:
    """The prediction inputs, from the signature of ``Runner.run``."""
    rows = ["| input | type | default | limits | meaning |", "| --- | --- | --- | --- | --- |"]
    hints = typing.get_type_hints(Runner.run)
    for name, parameter in inspect.signature(Runner.run).parameters.items():
        if name == "self":
            continue
        field = parameter.default
        bounds = ((">=", field.ge), ("<=", field.le))
        limits = ", ".join(f"{sign} {value}" for sign, value in bounds if value is not None)
        default = "" if field.default is None else f"`{field.default}`"
        kind = _type_name(hints[name])
        rows.append(f"| `{name}` | {kind} | {default} | {limits} | {field.description} |")
    return "\n".join(rows)


def _type_name(hint: object) -> str:
    inner = [each for each in typing.get_args(hint) if each is not type(None)]
    return str(getattr(inner[0] if inner else hint, "__name__", hint))


def settings_table() -> str:
    """The runner's environment variables."""
    rows = ["| variable | default | meaning |", "| --- | --- | --- |"]
    for variable in VARIABLES:
        default = Settings.model_fields[variable.field].default
        shown = "" if default is None or not str(default) or "Undefined" in repr(default) else f"`{default}`"
        rows.append(f"| `{variable.name}` | {shown} | {variable.meaning} |")
    return "\n".join(rows)


PARTS: dict[str, Callable[[], str]] = {
    "errors": markdown_table,
    "help": help_text,
    "inputs": input_table,
    "settings": settings_table,
}


def with_parts(text: str) -> str:
    """``text`` with every generated part renewed; a part without its markers is a KeyError."""
    for name, make in PARTS.items():
        pattern = re.compile(rf"(<!-- {name}:begin -->\n).*?(<!-- {name}:end -->)", re.DOTALL)
        if not pattern.search(text):
            raise KeyError(f"README.md has no markers for {name}")
        part = make() + "\n"
        text = pattern.sub(lambda match, part=part: match[1] + part + match[2], text)  # type: ignore[misc]
    return text


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m cli.readme", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a part is stale")
    options = parser.parse_args(arguments)
    before = README.read_text()
    after = with_parts(before)
    if before != after and not options.check:
        README.write_text(after)
    return 1 if options.check and before != after else 0


if __name__ == "__main__":
    sys.exit(main())
