"""Small wheels to install."""

import base64
import hashlib
import zipfile
from collections.abc import Mapping
from pathlib import Path


def make_wheel(
    folder: Path,
    name: str,
    files: Mapping[str, bytes],
    *,
    entry_points: str = "",
    damaged: str | None = None,
    executable: frozenset[str] = frozenset(),
) -> Path:
    info = f"{name}-1.0.dist-info"
    members = {**files, f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n".encode()}
    if entry_points:
        members[f"{info}/entry_points.txt"] = entry_points.encode()
    record = "".join(
        f"{each},sha256={_digest(b'' if each == damaged else content)},{len(content)}\n"
        for each, content in members.items()
    )
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for each, content in {**members, f"{info}/RECORD": record.encode()}.items():
            entry = zipfile.ZipInfo(each)
            entry.external_attr = (0o755 if each in executable else 0o644) << 16
            wheel.writestr(entry, content)
    return path


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
