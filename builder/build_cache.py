"""The build cache: checkpoints and engines of earlier builds, by the facts that determine them.

    <cache>/build-cache/<kind>/<digest of the facts>/record.json   the facts, and the size of each file
                                                     files/        the checkpoint or engine

An entry is added in one step, complete, and is never changed. A build holds the entry's lock while it makes
it; other builds that need it wait and reuse it. Nothing is removed automatically: delete the folder or any
entry in it. COG_TRITON_BUILD_CACHE=off neither reads nor writes the cache.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.lock import try_lock, unlock
from engine.staging import discard, is_staged, staged

SWITCH_VARIABLE = "COG_TRITON_BUILD_CACHE"
_NAP_S = 0.2
_RECORD = "record.json"
_FILES = "files"


@dataclass(frozen=True)
class Facts:
    """What determines a result. Results with the same ``model``, a name, are compared."""

    model: str
    revision: str
    config: Mapping[str, Any]
    library: str
    sm: int | None
    """None if the result does not depend on the architecture."""

    @property
    def content(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "model revision": self.revision,
            "config": json.loads(json.dumps(self.config)),
            "library version": self.library,
            "SM": self.sm,
        }

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps(self.content, sort_keys=True).encode()).hexdigest()


class BuildCache:
    """Entries of one ``kind`` (``checkpoint``, ``engine``) below ``cache``."""

    def __init__(self, cache: Path, kind: str, report: Callable[[str], None]) -> None:
        self._folder = cache / "build-cache" / f"{kind}s"
        self._kind = kind
        self._report = report
        self.is_on = os.environ.get(SWITCH_VARIABLE, "").lower() not in ("off", "0", "false", "no")

    @contextmanager
    def locked(self, facts: Facts) -> Iterator[None]:
        """Hold the lock of the entry of ``facts``."""
        if not self.is_on:
            yield
            return
        path = self._folder / f"{facts.digest}.lock"
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = try_lock(path)
        if descriptor is None:
            self._report(f"{self._kind}: waiting for another build of the same")
        while descriptor is None:
            time.sleep(_NAP_S)  # NOTE: short sleeps, so that Cog can cancel
            descriptor = try_lock(path)
        try:
            yield
        finally:
            unlock(path, descriptor)

    def find(self, facts: Facts) -> Path | None:
        """The files of the entry of ``facts``, or None; reports a line with the reason."""
        if not self.is_on:
            self._report(f"{self._kind}: built anew ({SWITCH_VARIABLE} is off)")
            return None
        entry = self._folder / facts.digest
        if (record := _read(entry)) is not None and _is_whole(entry / _FILES, record["files"]):
            self._report(f"{self._kind}: reused from {entry}")
            return entry / _FILES
        if entry.exists():
            self._report(f"{self._kind}: built anew (the one in {entry} is damaged)")
        else:
            self._report(self._difference(facts))
        return None

    def keep(self, facts: Facts, made: Path) -> Path:
        """Move the folder ``made`` into the cache; where it is then. Without a cache it stays."""
        if not self.is_on:
            return made
        entry = self._folder / facts.digest
        if entry.exists():
            discard(entry)
        files = {path.relative_to(made).as_posix(): path.stat().st_size for path in _files(made)}
        with staged(entry) as path:
            path.mkdir()
            made.rename(path / _FILES)
            record = {"facts": facts.content, "files": files}
            (path / _RECORD).write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
        return entry / _FILES

    def _difference(self, facts: Facts) -> str:
        """Why nothing is reused: what differs from the entry of this model that is most alike."""
        wanted = facts.content
        others = [
            record["facts"] for record in self._records() if record["facts"].get("model") == facts.model
        ]
        if not others:
            return f"{self._kind}: built anew (none of {facts.model} was built before)"
        nearest = min(others, key=lambda other: len(_differing(wanted, other)))
        changes = [_change(key, nearest.get(key), wanted[key]) for key in _differing(wanted, nearest)]
        return f"{self._kind}: built anew ({'; '.join(changes)})"

    def _records(self) -> Iterator[dict[str, Any]]:
        if not self._folder.is_dir():
            return
        entries = [path for path in self._folder.iterdir() if path.is_dir() and not is_staged(path)]
        for entry in sorted(entries, key=lambda path: path.stat().st_mtime, reverse=True):
            if (record := _read(entry)) is not None:
                yield record


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _read(entry: Path) -> dict[str, Any] | None:
    try:
        record = json.loads((entry / _RECORD).read_bytes())
    except (OSError, ValueError):
        return None
    is_record = isinstance(record, dict) and all(
        isinstance(record.get(key), dict) for key in ("facts", "files")
    )
    return record if is_record else None


def _is_whole(folder: Path, files: Mapping[str, int]) -> bool:
    try:
        return all((folder / name).stat().st_size == size_bytes for name, size_bytes in files.items())
    except OSError:
        return False


def _differing(wanted: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    return [key for key in wanted if wanted[key] != other.get(key)]


def _change(key: str, old: object, new: object) -> str:
    """``SM was 86, is 90``; of configs the names of what differs."""
    if key != "config":
        return f"{key} was {old}, is {new}"
    flat_old, flat_new = _flat(old), _flat(new)
    names = sorted(
        name
        for name in {**flat_old, **flat_new}
        if flat_old.get(name, _ABSENT) != flat_new.get(name, _ABSENT)
    )
    shown = [
        f"{name} was {flat_old.get(name, _ABSENT)}, is {flat_new.get(name, _ABSENT)}" for name in names[:3]
    ]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return f"config: {', '.join(shown)}{more}"


_ABSENT = "not given"


def _flat(value: object, name: str = "") -> dict[str, object]:
    if not isinstance(value, dict):
        return {name: value}
    flat: dict[str, object] = {}
    for key, inner in value.items():
        flat |= _flat(inner, f"{name}.{key}" if name else str(key))
    return flat
