"""The generated parts of docs are what the code says."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.readme import ERRORS, PARTS, with_parts


@pytest.mark.parametrize("path", PARTS, ids=lambda path: path.name)
def test_the_generated_parts_are_not_stale(path: Path) -> None:
    text = path.read_text()
    assert with_parts(text, PARTS[path]) == text, "run `make generated`"


def test_a_part_without_markers_is_told() -> None:
    with pytest.raises(KeyError, match="errors"):
        with_parts("no markers here", PARTS[ERRORS])


@pytest.mark.parametrize(
    ("name", "known", "other"),
    [
        ("errors.md", "| E1001 | PromptRequired |", "| E1001 | SomethingElse |"),
        ("cli.md", "usage: cog-triton doctor", "usage: cog-triton dentist"),
        ("settings.md", "| `LOG_FORMAT` |", "| `LOG_SHAPE` |"),
        ("observability.md", "`cog_triton_requests_total`", "`cog_triton_asked_total`"),
    ],
)
def test_a_stale_part_is_renewed_and_the_rest_kept(name: str, known: str, other: str) -> None:
    path = next(path for path in PARTS if path.name == name)
    text = path.read_text()
    stale = text.replace(known, other)
    assert stale != text
    assert with_parts(stale, PARTS[path]) == text
