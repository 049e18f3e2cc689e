"""Tables that are Markdown and read well in a terminal."""

from collections.abc import Sequence


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table. The first column is text, the others are figures: left and right."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    rule = [("-" * width if index == 0 else "-" * (width - 1) + ":") for index, width in enumerate(widths)]
    return "\n".join(_line(cells, widths) for cells in [head, rule, *rows])


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    first, *others = zip(cells, widths, strict=True)
    padded = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
    return f"| {' | '.join(padded)} |"
