"""A config that is being migrated, and the changes made to it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Change:
    """What changed at ``old``, a key path; ``new`` replaces it, None if it was dropped."""

    old: str
    text: str
    new: str | None = None
    why: str = ""

    def __str__(self) -> str:
        return f"{self.old}: {self.text}{self.why and f' ({self.why})'}"


@dataclass
class Migration:
    """``folders``: the resolved folders that steps wrote into, and the step of each."""

    keys: dict[str, Any]
    changes: list[Change] = field(default_factory=list)
    folders: dict[str, str] = field(default_factory=dict)

    def note(self, old: str, text: str, new: str | None = None, why: str = "") -> None:
        self.changes.append(Change(old, text, new, why))

    def drop(self, old: str, why: str) -> None:
        self.note(old, "dropped", why=why)

    def args(self, key: str) -> dict[str, Any]:
        args: dict[str, Any] = self.keys[key]["args"]
        return args

    @property
    def checkpoint_key(self) -> str | None:
        """The last step before the build."""
        return next((key for key in ("quantize", "convert_to_ft") if self.keys.get(key) is not None), None)
