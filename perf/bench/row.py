"""A row of the budget table and its verdict."""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from engine.machine.description import machine
from perf.table import table

REFERENCE_MACHINE = "an Intel Xeon at 2.1 GHz, 2 CPUs"
_REFERENCE = re.compile(r"Xeon.*@ 2\.1\d?GHz, 2 CPUs")


@dataclass(frozen=True)
class Row:
    """A measured figure with its limit: ``at_least`` or at most. All requests must be served."""

    what: str
    value: float
    limit: float | None
    unit: str = ""
    at_least: bool = False
    not_served: int = 0
    decimals: int = 1
    is_absolute: bool = False
    """The limit is for REFERENCE_MACHINE; elsewhere it is shown and not judged."""

    @property
    def is_judged(self) -> bool:
        return self.limit is not None and (not self.is_absolute or bool(_REFERENCE.search(machine())))

    @property
    def is_kept(self) -> bool:
        """True if no request failed and the value is within its limit, if any."""
        if self.limit is None or not self.is_judged or self.not_served:
            return not self.not_served
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    @property
    def verdict(self) -> str:
        return ("pass" if self.is_judged else "") if self.is_kept else "**FAIL**"

    @property
    def measured(self) -> str:
        return f"{self.value:,.{self.decimals}f}{self.unit}"

    @property
    def budget(self) -> str:
        sign = ">=" if self.at_least else "<="
        return "" if self.limit is None else f"{sign} {self.limit:,g}{self.unit}"


def ratio(what: str, value: float, other: float, *, at_least: float, not_served: int = 0) -> Row:
    """Make a row of how much more of it there is than with the other."""
    return Row(what, value / other if other else 0.0, at_least, "", True, not_served, 2)


def absolute(what: str, value: float, at_least: float | None, *, not_served: int, decimals: int = 1) -> Row:
    """Make a row of a figure whose limit is for REFERENCE_MACHINE."""
    return Row(what, value, at_least, "", True, not_served, decimals, is_absolute=True)


def budget_table(rows: Sequence[Row]) -> str:
    head = ["what", "budget", "measured", "not served", "verdict"]
    body = [[row.what, row.budget, row.measured, str(row.not_served), row.verdict] for row in rows]
    return table(head, body)
