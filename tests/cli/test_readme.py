"""The README's generated parts are what the code says."""

from __future__ import annotations

import pytest

from cli.readme import PARTS, README, with_parts


def test_the_generated_parts_are_not_stale() -> None:
    text = README.read_text()
    assert with_parts(text) == text, "run `python -m cli.readme`"


def test_a_part_without_markers_is_told() -> None:
    with pytest.raises(KeyError, match=next(iter(PARTS))):
        with_parts("no markers here")


def test_a_stale_part_is_renewed_and_the_rest_kept() -> None:
    text = README.read_text()
    stale = text.replace("| E1001 | PromptRequired |", "| E1001 | SomethingElse |")
    assert stale != text
    assert with_parts(stale) == text
