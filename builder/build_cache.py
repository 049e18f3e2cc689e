"""The build cache: checkpoints and engines of earlier builds, by the facts that determine them.

    <cache>/build-cache/<kind>s/<digest of the facts>/record.json   the facts, and the size of each file
                                                      files/        the checkpoint or engine

An entry is added in one step, complete, and is never changed: see docs/building.md.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

from engine.lock import locked
from engine.staging import discard, is_staged, staged
from engine.switch import is_on

SWITCH_VARIABLE = "COG_TRITON_BUILD_CACHE"
_MAX_CHANGES = 3
"""Maximum number of changed facts in a line."""

Facts = Mapping[str, str | int | float | bool | None]
"""Facts that determine a result. Results with the same ``model``, a name, are compared."""


class CacheEntry:
    """The checkpoint or engine (``kind``) with these ``facts``, in the build cache below ``cache``."""

    def __init__(self, cache: Path, kind: str, facts: Facts, report: Callable[[str], None]) -> None:
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()
        self._entry = cache / "build-cache" / f"{kind}s" / digest
        self._facts = facts
        self._report: Callable[[str], None] = lambda line: report(f"{kind}: {line}")
        self.is_on = is_on(SWITCH_VARIABLE, default=True)

    def locked(self) -> AbstractContextManager[None]:
        if not self.is_on:
            return nullcontext()
        path = self._entry.with_suffix(".lock")
        path.parent.mkdir(parents=True, exist_ok=True)
        return locked(path, lambda: self._report("waiting for another build of the same"))

    def find(self) -> Path | None:
        """Return the files of the entry; if there are none, report a line with the reason and return None."""
        if not self.is_on:
            self._report(f"built anew ({SWITCH_VARIABLE} is off)")
            return None
        files = self._entry / "files"
        if (record := _read(self._entry)) is not None and _is_whole(files, record["files"]):
            self._report(f"reused from {self._entry}")
            return files
        reason = f"the one in {self._entry} is damaged" if self._entry.exists() else self._difference()
        self._report(f"built anew ({reason})")
        return None

    def keep(self, made: Path) -> Path:
        """Move the folder ``made`` into the cache and return its new path. Without a cache it stays."""
        if not self.is_on:
            return made
        if self._entry.exists():
            discard(self._entry)
        paths = [path for path in made.rglob("*") if path.is_file()]
        files = {path.relative_to(made).as_posix(): path.stat().st_size for path in paths}
        with staged(self._entry) as path:
            path.mkdir()
            made.rename(path / "files")
            record = {"facts": self._facts, "files": files}
            (path / "record.json").write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
        return self._entry / "files"

    def _difference(self) -> str:
        """Describe how the most similar entry of this model differs."""
        folders = [path for path in self._entry.parent.iterdir() if path.is_dir() and not is_staged(path)]
        folders.sort(key=lambda path: path.stat().st_mtime, reverse=True)
        others = [record["facts"] for path in folders if (record := _read(path)) is not None]
        changes = [self._changes(other) for other in others if other.get("model") == self._facts["model"]]
        if not changes:
            return f"none of {self._facts['model']} was built before"
        nearest = min(changes, key=len)
        more = len(nearest) - _MAX_CHANGES
        return "; ".join(nearest[:_MAX_CHANGES]) + (f" and {more} more" if more > 0 else "")

    def _changes(self, other: Facts) -> list[str]:
        """Describe every fact that differs: ``SM was 86, is 90``."""
        old, new = (
            {**dict.fromkeys([*self._facts, *other], "not given"), **each} for each in (other, self._facts)
        )
        return [f"{name} was {old[name]}, is {new[name]}" for name in new if old[name] != new[name]]


def _read(entry: Path) -> dict[str, Any] | None:
    try:
        record = json.loads((entry / "record.json").read_bytes())
        return record if isinstance(record["facts"], dict) and isinstance(record["files"], dict) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _is_whole(folder: Path, files: Mapping[str, int]) -> bool:
    try:
        return all((folder / name).stat().st_size == size_bytes for name, size_bytes in files.items())
    except OSError:
        return False
