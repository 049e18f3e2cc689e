"""The table of what was kept and dropped."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from .library import Survey

_COLUMNS = ("library", "containers", "empty", "compiled", "kept", "dropped", "elsewhere")
_LEGEND = (
    "in bytes of device code; empty: with nothing for this GPU; compiled: containers of PTX alone,\n"
    "compiled when loaded; dropped: zeros now; elsewhere: not in the known sections, left alone"
)


def table(surveys: Sequence[Survey], base: Path) -> str:
    """A line per library with device code, in the order given, then the sums and what the columns mean.

    `base` is the folder that paths are shown relative to, where they lie in it.
    """
    rows = [(_shown(one.path, base), _numbers(one)) for one in surveys if one.has_device_code]
    sums = [sum(column) for column in zip(*(numbers for _, numbers in rows), strict=True)]
    rows.append(("total", sums or [0] * (len(_COLUMNS) - 1)))
    lines = [list(_COLUMNS), *([name, *(f"{number:,}" for number in numbers)] for name, numbers in rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join([*(_line(line, widths) for line in lines), _LEGEND])


def _numbers(one: Survey) -> list[int]:
    return [one.containers, one.empty, one.compiled, one.kept, one.dropped, one.elsewhere]


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    numbers = [cell.rjust(width) for cell, width in zip(cells[1:], widths[1:], strict=True)]
    return "  ".join([cells[0].ljust(widths[0]), *numbers])


def _shown(path: Path, base: Path) -> str:
    return str(path.relative_to(base) if path.is_relative_to(base) else path)
