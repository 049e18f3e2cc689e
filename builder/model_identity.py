"""What tells one model's content from another's."""

from __future__ import annotations

import hashlib

from builder.model_files import Model


def identity(model: Model) -> str:
    """The model's revision; of a folder a digest of its files' names, sizes and times of change."""
    if model.revision is not None:
        return model.revision
    digest = hashlib.sha256()
    for name, path in sorted(model.files.items()):
        status = path.stat()
        digest.update(f"{name} {status.st_size} {status.st_mtime_ns}\n".encode())
    return f"files {digest.hexdigest()[:16]}"
