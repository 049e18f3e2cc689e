"""The blocks of code in README and docs, and the mark before each: what tests it, or why nothing does.

A mark is an HTML comment before the block, which a reader of the page does not see:

    <!-- run: served -->       its commands run against a served tiny model, on that runner's ports
    <!-- run: typed -->        its commands run in a folder that has the files that they name
    <!-- run: config -->       it is a build config, or the keys of one, and can be planned
    <!-- tested: PATH -->      the tests at PATH run or compare it
    <!-- not run: REASON -->   nothing runs it, for this reason

A mark before the first heading's text is for all blocks of its page that have none of their own.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_MARK = re.compile(r"<!-- (run|tested|not run): (.+) -->")


@dataclass(frozen=True)
class Block:
    page: Path
    line: int
    language: str
    """Language of a fenced block; blank for an indented one."""
    text: str
    mark: str
    """``run``, ``tested`` or ``not run``; blank without a mark."""
    value: str


def blocks_of(page: Path) -> list[Block]:
    return list(_blocks(page, page.read_text().splitlines()))


def _blocks(page: Path, lines: list[str]) -> Iterator[Block]:
    of_page = next((match for line in lines[:3] if (match := _MARK.fullmatch(line))), None)
    number = 0
    while number < len(lines):
        end = _end_of_block(lines, number)
        if end is None:
            number += 1
            continue
        is_fenced = lines[number].startswith("```")
        inner = lines[number + 1 : end - 1] if is_fenced else [line[4:] for line in lines[number:end]]
        before = next((line for line in reversed(lines[:number]) if line.strip()), "")
        mark = _MARK.fullmatch(before) or of_page
        yield Block(
            page,
            number + 1,
            lines[number].removeprefix("```") if is_fenced else "",
            "\n".join(inner) + "\n",
            *(mark.groups() if mark else ("", "")),
        )
        number = end


def _end_of_block(lines: list[str], start: int) -> int | None:
    """Return the line after the block that begins at ``start``; None if none begins there."""
    if lines[start].startswith("```"):
        return lines.index("```", start + 1) + 1
    if not lines[start].startswith("    ") or (start and lines[start - 1].strip()):
        return None
    end = start
    while end < len(lines) and (lines[end].startswith("    ") or not lines[end].strip()):
        end += 1
    while not lines[end - 1].strip():
        end -= 1
    return end
