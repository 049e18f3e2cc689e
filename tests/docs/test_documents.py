"""README and docs: lines, links, paths, commands and words."""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import tokenize
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

from engine.machine.root import SOURCE_ROOT
from perf.__main__ import COMMANDS

WIDTH = 120
STRUCTURES = SOURCE_ROOT / "docs" / "structures.md"
DOCUMENTS = [
    *(SOURCE_ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((SOURCE_ROOT / "docs").rglob("*.md")),
]
CHECKED_CODE = ("builder", "cli", "engine", "errors", "mock_cog_triton", "perf", "runner", "scripts", "tools")
"""Folders of Python whose comments and docstrings are free of private words."""

PRIVATE_WORDS = re.compile(
    r"who asks|whoever|nobody|somebody|anybody|door.?keep\w*|turn(ed|s)?[ _]away|last[ _]?words|hopeless"
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

_CODE = re.compile(r"^```.*?^```$|(?:^ {4}.*\n)+", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)")
_MODULE = re.compile(r"python3? -m ([a-z_][\w.]*)")
_SCRIPT = re.compile(r"python[\d.]* ([\w./-]+\.py)\b")
_MAKE = re.compile(r"^(?: {4}|`)make ([a-z][a-z-]*)|`make ([a-z][a-z-]*)", re.MULTILINE)
_NOT_OURS = ("cog", "pip", "http", "vllm", "venv")

each_document = pytest.mark.parametrize(
    "document", DOCUMENTS, ids=lambda path: str(path.relative_to(SOURCE_ROOT))
)


def code_of(text: str) -> list[str]:
    """The blocks of code, fenced or indented by four spaces after an empty line."""
    return [match[0] for match in _CODE.finditer(text)]


def anchors(document: Path) -> set[str]:
    """Those that GitHub gives to the headings."""
    headings = re.findall(r"^#+ (.+)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@each_document
def test_no_line_is_wider_than_120_columns_but_for_tables(document: Path) -> None:
    lines = enumerate(document.read_text().splitlines(), start=1)
    assert [number for number, line in lines if len(line) > WIDTH and not line.startswith("|")] == []


@each_document
def test_every_relative_link_leads_somewhere(document: Path) -> None:
    assert list(dead_links(document)) == []


def dead_links(document: Path) -> Iterator[str]:
    for link in _LINK.findall(document.read_text()):
        path, _, anchor = link.partition("#")
        if "://" in link:
            continue
        target = (document.parent / path) if path else document
        if not target.exists() or (anchor and anchor not in anchors(target)):
            yield link


@each_document
def test_every_path_of_this_tree_exists(document: Path) -> None:
    assert sorted(set(dead_paths(document.read_text()))) == []


def dead_paths(text: str) -> Iterator[str]:
    """Paths in backticks and in commands that begin with a folder of this tree, and names of modules."""
    for span in [*_SPAN.findall(text), *_SCRIPT.findall("\n".join(code_of(text)))]:
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


@each_document
def test_every_module_and_target_that_is_to_be_run_exists(document: Path) -> None:
    text = document.read_text()
    targets = re.findall(r"^([a-z-]+):", (SOURCE_ROOT / "Makefile").read_text(), re.MULTILINE)
    named = {first or second for first, second in _MAKE.findall(text)}
    modules = {name for name in _MODULE.findall(text) if name.split(".")[0] not in _NOT_OURS}
    assert set(re.findall(r"python -m perf ([a-z-]+)", text)) - set(COMMANDS) == set()
    assert named - set(targets) == set()
    assert {name for name in modules if not is_program(name)} == set()


def is_program(name: str) -> bool:
    path = SOURCE_ROOT.joinpath(*name.split("."))
    return path.with_suffix(".py").is_file() or (path / "__main__.py").is_file()


@each_document
def test_every_request_that_is_shown_says_that_it_is_json(document: Path) -> None:
    """Cog answers 415 to curl's own content type; only Triton (port 8000) accepts any."""
    for command in requests(code_of(document.read_text())):
        words = shlex.split(command)
        if "-d" in words and ":8000/" not in command:
            assert "Content-Type: application/json" in words, command
        if "-d" in words:
            json.loads(words[words.index("-d") + 1])


def requests(blocks: Iterable[str]) -> Iterator[str]:
    """Commands of curl with a body, each as one shell command."""
    for block in blocks:
        joined = re.sub(r"\\\n\s*", "", block)
        for match in re.finditer(r"curl [^\n']*'[^']*'[^\n]*", joined):
            yield re.sub(r"\s+[>|&].*$", "", match[0])


@each_document
def test_documents_are_free_of_private_words(document: Path) -> None:
    assert [match[0] for match in PRIVATE_WORDS.finditer(document.read_text())] == []


@pytest.mark.parametrize("folder", CHECKED_CODE)
def test_comments_and_docstrings_are_free_of_private_words(folder: str) -> None:
    found = [
        f"{path.relative_to(SOURCE_ROOT)}:{line}: {word}"
        for path in sorted((SOURCE_ROOT / folder).rglob("*.py"))
        if PRIVATE_WORDS.search(path.read_text())
        for line, text in prose_of(path)
        for word in (match[0] for match in PRIVATE_WORDS.finditer(text))
    ]
    assert found == []


def prose_of(path: Path) -> Iterator[tuple[int, str]]:
    """Comments, and strings that are statements, with their lines."""
    previous = tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        starts_statement = previous in (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING)
        if token.type == tokenize.COMMENT or (token.type == tokenize.STRING and starts_statement):
            yield token.start[0], token.string
        if token.type not in (tokenize.COMMENT, tokenize.NL):
            previous = token.type


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("Look at `runner/no_such.py`.\n", ["runner/no_such.py"]),
        ("Look at `runner/slot` and `no_such_module.py`.\n", ["no_such_module.py"]),
        ("\n    python perf/no_such.py --help\n", ["perf/no_such.py"]),
        ("Look at `docs/*.md`, `README.md` and `/v1/models`.\n", []),
    ],
)
def test_a_path_that_is_gone_is_found(text: str, found: list[str]) -> None:
    assert list(dead_paths(text)) == found


def test_a_dead_link_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# A page\n[a](other.md) [b](page.md#a-page) [c](#nowhere) [d](https://example.com/x)\n")
    assert list(dead_links(page)) == ["other.md", "#nowhere"]


PACKAGES = ("errors", "engine", "builder", "runner", "cli", "perf", "tools", "scripts", "mock_cog_triton")
WITH_LINES_FOR_FOLDERS = ("engine", "builder", "runner", "runner/engines")


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


def test_structures_fits_on_a_screen_and_a_half() -> None:
    assert len(STRUCTURES.read_text().splitlines()) <= 100
