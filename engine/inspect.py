"""Read the manifest of an engine from the first bytes of a tar, or from a directory."""

from __future__ import annotations

from pathlib import Path

from engine.directory import load, read_directory_manifest
from engine.download.fetch import fetch, local_path, shown
from engine.tar.archive import TarReader
from engine.tar.compression import PlainTar, plain_tar
from engine.tar.manifest import MANIFEST_NAME, MAX_MANIFEST_BYTES, Manifest, parse_manifest
from engine.verify import verify
from errors.engine_tar import InvalidManifest


def read_manifest(source: str | Path) -> Manifest:
    """The manifest of a directory, a tar or a URL; of a tar that begins with it only the start is read.

    A tar without one is read as a whole if it is a local file, and InvalidManifest otherwise. Raises
    the errors of ``fetch``, ``parse_manifest``, TarReader and ``load``.
    """
    path = local_path(source)
    if path is not None and path.is_dir():
        return read_directory_manifest(path) if (path / MANIFEST_NAME).exists() else load(path).manifest
    with fetch(source) as stream:
        manifest = leading_manifest(plain_tar(stream, shown(source), stream.size_bytes), shown(source))
    if manifest is not None:
        return manifest
    if path is not None:
        return verify(path)
    raise InvalidManifest(
        place=shown(source), reason="the tar does not begin with one (download it to inspect it without)"
    )


def leading_manifest(tar: PlainTar, place: str) -> Manifest | None:
    """The manifest if it is the first file of ``tar``, else None; ``tar`` is read from its start again."""
    with tar.read_ahead():
        reader = TarReader(tar, place, tar.size_bytes)
        member = reader.next_file()
        if member is None or member.name != MANIFEST_NAME:
            return None
        if member.size_bytes > MAX_MANIFEST_BYTES:
            raise InvalidManifest(place=place, reason=f"its {member.size_bytes} bytes are too many")
        content = bytearray()
        while chunk := reader.chunk():
            content += chunk
    return parse_manifest(bytes(content), place)
