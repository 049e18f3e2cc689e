"""Identify the content of a model."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from builder.weights.model_files import Model


def identity(model: Model) -> str:
    """The model's revision; of a folder what its files look like."""
    return model.revision if model.revision is not None else _digest(model.files.items())


def looks(path: Path) -> str:
    """A digest of names, sizes and times of change of the file or folder at ``path``."""
    files = [path] if path.is_file() else [each for each in path.rglob("*") if each.is_file()]
    return _digest((each.relative_to(path).as_posix(), each) for each in files)


def _digest(files: Iterable[tuple[str, Path]]) -> str:
    digest = hashlib.sha256()
    for name, path in sorted(files):
        status = path.stat()
        digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return f"files {digest.hexdigest()[:16]}"
