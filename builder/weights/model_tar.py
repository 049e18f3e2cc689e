"""A model that comes as a tar: unpacked while it is fetched, kept in the cache by its content.

<cache>/model-tars/<SHA-256 of the tar>/   its files
                   urls/<digest>           which of them a URL meant, while its server says it is the same
"""

import hashlib
import os
from pathlib import Path

from builder.weights.model_files import Sources
from engine.disk import require_space, writing
from engine.download.fetch import Source, fetch
from engine.redact import redact_url
from engine.staging import staged
from engine.tar.archive import TarReader
from engine.tar.compression import plain_tar
from errors.build_config import ModelTarUnavailable
from errors.coded_error import CodedError
from errors.download import AddressRefused


def obtain_model_tar(url: str, sources: Sources) -> tuple[Path, str]:
    """Obtain the model in the tar at ``url``: its folder and SHA-256. Raises E1212 and AddressRefused."""
    cache = sources.cache
    try:
        with fetch(url, only_public=sources.only_public, progress=sources.progress) as source:
            record = _record(cache, url, source.identity) if source.identity else None
            digest = record.read_text() if record is not None and record.exists() else ""
            if not digest or not _folder(cache, digest).is_dir():
                digest = _unpack(source, cache, sources.scratch)
                if record is not None:
                    with staged(record) as path:
                        path.write_text(digest)
    except AddressRefused:
        raise
    except CodedError as exc:
        raise ModelTarUnavailable(url=redact_url(url), reason=exc.sentence) from exc
    return _model_folder(_folder(cache, digest)), digest


class _Hashed:
    def __init__(self, source: Source) -> None:
        self.sha256 = hashlib.sha256()
        self._source = source

    def readinto(self, buffer: memoryview, /) -> int:
        count = self._source.readinto(buffer)
        self.sha256.update(buffer[:count])
        return count


def _unpack(source: Source, cache: Path, scratch: Path) -> str:
    """Unpack into ``scratch``, move the whole into the cache, and return the tar's SHA-256."""
    hashed = _Hashed(source)
    tar = plain_tar(hashed, source.place, source.size_bytes)
    require_space(scratch, tar.size_bytes or 0)
    arriving = scratch / "model-tar"
    arriving.mkdir()
    reader = TarReader(tar, source.place, tar.size_bytes)
    while (member := reader.next_file()) is not None:
        _write(reader, arriving / member.name)
    digest = hashed.sha256.hexdigest()
    target = _folder(cache, digest)
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.is_dir():
            arriving.rename(target)
    return digest


def _write(reader: TarReader, path: Path) -> None:
    """Write the reader's current file; TarReader gives plain names only, so it stays in its folder."""
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("xb") as file:
            while chunk := reader.chunk():
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())


def _model_folder(folder: Path) -> Path:
    """Return ``folder``, or the one folder in it if the tar was made of a folder and not of its files."""
    inner = list(folder.iterdir())
    return inner[0] if len(inner) == 1 and inner[0].is_dir() else folder


def _folder(cache: Path, digest: str) -> Path:
    return cache / "model-tars" / digest


def _record(cache: Path, url: str, identity: str) -> Path:
    name = hashlib.sha256(f"{redact_url(url)} {identity}".encode()).hexdigest()
    return cache / "model-tars" / "urls" / name
