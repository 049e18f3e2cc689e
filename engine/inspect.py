"""Read the manifest of an engine in a tar or directory, or verify every byte of it."""

import json
import os
import tarfile
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from fnmatch import fnmatch
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, cast

from engine.directory import file_sizes, load, read_directory_manifest
from engine.disk import reading, sha256_of
from engine.download.fetch import fetch, local_path, shown
from engine.names import BadName, normal_name
from engine.sampling_defaults import GENERATION_CONFIG, read_sampling_defaults, sampling_defaults
from engine.tar.contents import ContentReader, compare
from engine.tar.file_writer import Write
from engine.tar.manifest import MANIFEST_NAME, FileEntry, Manifest
from errors.engine_tar import EngineNotFound, EngineUnreadable, InvalidManifest

_MAX_CONFIG_BYTES = 1 << 20
_MAX_SMALL_BYTES = 1 << 26


def read_manifest(source: str | Path) -> Manifest:
    """Read the manifest of a directory, a tar or a URL.

    If a tar begins with it, only the start is read. A tar without one is read as a whole if it is a local
    file, and InvalidManifest otherwise. Raises the errors of ``fetch``, ``parse_manifest``, TarReader and
    ``load``.
    """
    path = local_path(source)
    if path is not None and path.is_dir():
        return read_directory_manifest(path) if (path / MANIFEST_NAME).exists() else load(path).manifest
    with fetch(source) as stream:
        manifest = ContentReader(stream, shown(source), stream.size_bytes).manifest
    if manifest is not None:
        return manifest
    if path is not None:
        return verify(path)
    raise InvalidManifest(
        place=shown(source), reason="the tar does not begin with one (download it to inspect it without)"
    )


def verify(path: Path) -> Manifest:
    """Check every byte of the engine directory or tar ``path``, and return its manifest.

    Raises what ``load`` or ``unpack`` would, and UnexpectedEngineFile for a file the manifest does not list.
    Without a manifest only the tar's own structure can be checked.
    """
    with reading(path):
        if not path.exists():
            raise EngineNotFound(place=path, reason="does not exist")
        if path.is_dir():
            return _verify_directory(path)
        with path.open("rb") as file:
            return ContentReader(file, str(path), os.fstat(file.fileno()).st_size).read_all(_Nowhere())


def read_sampling(source: str | Path, manifest: Manifest) -> dict[str, float]:
    """Read the engine's default sampling parameters; return none for a URL or a compressed tar.

    Raises EngineUnreadable and GenerationConfigInvalid.
    """
    path = local_path(source)
    if path is None or GENERATION_CONFIG not in manifest.files:
        return {}
    if path.is_dir():
        return read_sampling_defaults(path)
    place = f"{GENERATION_CONFIG} of {path}"
    try:
        # NOTE: the library seeks, so that the weights are not read.
        with reading(path), tarfile.open(path, "r:") as tar:
            member = tar.getmember(GENERATION_CONFIG)
            file = tar.extractfile(member) if member.size <= _MAX_CONFIG_BYTES else None
            document = json.load(file) if file is not None else None
    except (tarfile.TarError, KeyError):
        return {}
    except (ValueError, RecursionError) as exc:
        raise EngineUnreadable(place=place, reason=f"it is not JSON ({exc})") from exc
    return sampling_defaults(document, place) if isinstance(document, dict) else {}


@contextmanager
def small_files(source: str | Path, patterns: Iterable[str]) -> Iterator[Path | None]:
    """Provide a folder with the engine's files that match ``patterns``; None for a URL or compressed tar."""
    path = local_path(source)
    if path is None or path.is_dir():
        yield path
        return
    with TemporaryDirectory(prefix="cog-triton-inspect-") as folder:
        try:
            with reading(path), tarfile.open(path, "r:") as tar:
                for member in filter(tarfile.TarInfo.isreg, tar):
                    name = normal_name(member.name)
                    if member.size <= _MAX_SMALL_BYTES and any(fnmatch(name, each) for each in patterns):
                        file = Path(folder, name)
                        file.parent.mkdir(parents=True, exist_ok=True)
                        # NOTE: Debian 12's Python 3.11.2 has no filter="data" for TarFile.extract.
                        file.write_bytes(cast(IO[bytes], tar.extractfile(member)).read())
        except (tarfile.TarError, BadName):
            yield None
            return
        yield Path(folder)


class _Nowhere:
    """``Files`` that are only read to be hashed."""

    def write(self, name: str, content: memoryview) -> None:
        pass

    @contextmanager
    def create(self, name: str, size_bytes: int) -> Iterator[Write]:
        yield lambda chunk: None


def _verify_directory(path: Path) -> Manifest:
    manifest = load(path).manifest
    if (path / MANIFEST_NAME).exists():
        sizes = dict(file_sizes(path))
        with ThreadPoolExecutor(thread_name_prefix="sha256") as pool:
            digests = pool.map(_sha256, (path / name for name in sizes))
            found = {
                name: FileEntry(sizes[name], digest) for name, digest in zip(sizes, digests, strict=True)
            }
        compare(manifest, found, str(path))
    return manifest


def _sha256(path: Path) -> str:
    with reading(path):
        return sha256_of(path)
