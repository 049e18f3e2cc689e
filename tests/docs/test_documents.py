"""README and docs: lines, links, paths, commands and words."""

import json
import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from engine.machine.root import SOURCE_ROOT
from perf.__main__ import COMMANDS
from tests.docs.blocks import blocks_of

WIDTH = 120
STRUCTURES = SOURCE_ROOT / "docs" / "structures.md"
DOCUMENTS = [
    *(SOURCE_ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((SOURCE_ROOT / "docs").rglob("*.md")),
]
PRIVATE_WORDS = re.compile(
    r"who asks|whoever|nobody|somebody|anybody|door.?keep\w*|turn(ed|s)?[ _]away|last ?words|hopeless"
    r"|\baskers?\b|suffer\w*|affair|counts? as dead|(?-i:that (is|are) none\b)|\bto come \|",
    re.IGNORECASE,
)
"""Words of earlier versions for which the field has standard ones."""

NOT_IN_THE_TREE = {
    "triton_model_repo/tensorrt_llm/1": "a user unpacks an engine there",
    "tests/clients/javascript/node_modules": "`make test-clients` makes it",
    "tools/fill_template.py": "NVIDIA's",
    "end_to_end_grpc_client.py": "NVIDIA's",
    "inflight_batcher_llm_client.py": "NVIDIA's",
    "end_to_end_test.py": "NVIDIA's",
    "tools/inflight_batcher_llm/end_to_end_test.py": "NVIDIA's",
    "hf_gpt_convert.py": "NVIDIA's",
}
"""Paths that documents name and that a checkout does not have."""

_TOP = {
    path.split("/")[0]
    for path in subprocess.run(
        ["git", "ls-files"], cwd=SOURCE_ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
}
"""Top-level entries of the repository, without folders that a run makes."""

_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_MODULE = re.compile(r"python3? -m ([a-z_][\w.]*)")
_SCRIPT = re.compile(r"python[\d.]* ([\w./-]+\.py)\b")
_MAKE = re.compile(r"^(?: {4}|`)make ([a-z][a-z-]*)|`make ([a-z][a-z-]*)", re.MULTILINE)
_NOT_OURS = ("cog", "dynamo", "pip", "http", "vllm", "venv")


def anchors(document: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def faults(document: Path) -> Iterator[str]:
    text, code = document.read_text(), [block.text for block in blocks_of(document)]
    lines = enumerate(text.splitlines(), start=1)
    yield from (f"line {number}" for number, line in lines if len(line) > WIDTH and not line.startswith("|"))
    yield from (f"link {link}" for link in dead_links(document))
    yield from (f"path {path}" for path in sorted(set(dead_paths(text, code))))
    yield from (f"command {name}" for name in sorted(dead_commands(text)))
    yield from (f"request {command}" for command in requests(code) if not is_json(command))
    yield from (f"word {match[0]}" for match in PRIVATE_WORDS.finditer(text))


def test_documents_have_no_faults() -> None:
    assert [f"{document}: {fault}" for document in DOCUMENTS for fault in faults(document)] == []


PAGE = f"""\
# A page
{"wide " * 30}
| {"wide " * 30}|
[a](other.md) [b](page.md#a-page) [c](#nowhere) [d](https://example.com/x)
Look at `runner/no_such.py`, `runner/slot`, `no_such_module.py`, `docs/*.md`, `README.md` and `/v1/models`.

    python perf/no_such.py --help
    make nothing
    python -m perf nothing && python -m runner.nothing && python -m pip
    curl http://localhost:5000/predictions -d '{{}}' > file
    curl http://localhost:9000/v1/models -H 'Content-Type: application/json' -d '{{'
    curl http://localhost:9000/v1/models -H 'Content-Type: application/json' -d '{{}}'
    curl http://localhost:8000/v2 -d '{{}}'

This door_keeper suffers.
"""
FAULTS = [
    *("line 2", "link other.md", "link #nowhere"),
    *("path no_such_module.py", "path perf/no_such.py", "path runner/no_such.py"),
    *("command nothing", "command perf nothing", "command runner.nothing"),
    "request curl http://localhost:5000/predictions -d '{}'",
    "request curl http://localhost:9000/v1/models -H 'Content-Type: application/json' -d '{'",
    *("word door_keeper", "word suffers"),
]


def test_each_fault_of_a_page_is_found(tmp_path: Path) -> None:
    (tmp_path / "page.md").write_text(PAGE)
    assert list(faults(tmp_path / "page.md")) == FAULTS


def dead_links(document: Path) -> Iterator[str]:
    for link in _LINK.findall(document.read_text()):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (document.parent / path) if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


def dead_paths(text: str, code: list[str]) -> Iterator[str]:
    """Paths in backticks and in commands that begin with a folder of this tree, and names of modules."""
    for span in [*_SPAN.findall(text), *_SCRIPT.findall("\n".join(code))]:
        for word in re.findall(r"[\w./*-]+", span):
            path = word.rstrip("/.").removesuffix("/*")
            if path in NOT_IN_THE_TREE:
                continue
            is_path = word.split("/")[0] in _TOP and "/" in word
            is_module = re.fullmatch(r"[a-z_]\w*\.py", span)
            if (is_path or is_module) and not exists(path if is_path else f"[!.]*/**/{path}"):
                yield word


@cache
def exists(pattern: str) -> bool:
    return any(SOURCE_ROOT.glob(pattern))


def dead_commands(text: str) -> set[str]:
    targets = re.findall(r"^([a-z-]+):", (SOURCE_ROOT / "Makefile").read_text(), re.MULTILINE)
    named = {first or second for first, second in _MAKE.findall(text)} - set(targets)
    modules = {name for name in _MODULE.findall(text) if name.split(".")[0] not in _NOT_OURS}
    measurements = set(re.findall(r"python -m perf ([a-z-]+)", text)) - set(COMMANDS)
    dead_modules = {name for name in modules if not is_program(name)}
    return named | dead_modules | {f"perf {name}" for name in measurements}


def is_program(name: str) -> bool:
    path = SOURCE_ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


def is_json(command: str) -> bool:
    """Return whether a request says so: Cog answers 415 to curl's own content type. Triton takes any."""
    words = shlex.split(command)
    if "-d" not in words:
        return True
    with suppress(ValueError):
        json.loads(words[words.index("-d") + 1])
        return ":8000/" in command or "Content-Type: application/json" in words
    return False


def requests(blocks: Iterable[str]) -> Iterator[str]:
    """Commands of curl with a body, each as one shell command."""
    for block in blocks:
        joined = re.sub(r"\\\n\s*", "", block)
        for match in re.finditer(r"curl [^\n']*'[^']*'[^\n]*", joined):
            yield re.sub(r"\s+[>|&].*$", "", match[0])


PACKAGES = ("errors", "engine", "builder", "runner", "cli", "perf", "tools", "scripts", "mock_cog_triton")
WITH_LINES_FOR_FOLDERS = ("engine", "builder", "runner", "runner/engines")


def test_the_product_is_free_of_private_words() -> None:
    files = [path for folder in PACKAGES for path in (SOURCE_ROOT / folder).rglob("*.py")]
    assert [
        f"{path}: {match[0]}" for path in files for match in PRIVATE_WORDS.finditer(path.read_text())
    ] == []


def test_every_folder_of_the_product_has_its_line_in_structures() -> None:
    table = STRUCTURES.read_text().split("\n## Folders\n")[1].split("\n## ")[0]
    described = {
        name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in _SPAN.findall(row)
    }
    folders = {
        f"{parent}/{path.name}"
        for parent in WITH_LINES_FOR_FOLDERS
        for path in (SOURCE_ROOT / parent).iterdir()
        if [module for module in path.glob("*.py") if module.name != "__init__.py"]
    }
    assert (folders | set(PACKAGES)) - described == set()
    assert [name for name in described if not (SOURCE_ROOT / name).exists()] == []


def test_structures_fits_on_two_screens() -> None:
    lines = STRUCTURES.read_text().splitlines()
    assert len(lines) <= 100
    assert [line for line in lines if len(line) > 110] == []
