"""The generated parts of docs are what the code says."""

import re

import pytest

from tools.readme import ERRORS, PARTS, with_parts


def test_the_generated_parts_are_not_stale_and_a_stale_one_is_renewed() -> None:
    for path, parts in PARTS.items():
        text = path.read_text()
        assert with_parts(text, parts) == text, f"{path}: run `make generated`"
        stale = re.sub(r"(:begin -->\n).*?(<!-- [\w-]+:end)", r"\1old\n\2", text, flags=re.DOTALL)
        assert stale != text == with_parts(stale, parts)


def test_a_part_without_markers_is_told() -> None:
    with pytest.raises(KeyError, match="errors"):
        with_parts("no markers here", PARTS[ERRORS])
