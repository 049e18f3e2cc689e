"""A config that is being migrated, and a note for each change."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Migration:
    keys: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    def note(self, key: str, text: str, why: str = "") -> None:
        """``key`` is the path of the old key."""
        self.notes.append(f"{key}: {text}{why and f' ({why})'}")

    def drop(self, key: str, why: str) -> None:
        self.note(key, "dropped", why)

    def args(self, step: str) -> dict[str, Any]:
        args: dict[str, Any] = self.keys[step]["args"]
        return args

    @property
    def checkpoint_key(self) -> str | None:
        """The last step before the build."""
        return next((key for key in ("quantize", "convert_to_ft") if self.keys.get(key) is not None), None)
