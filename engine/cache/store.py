"""Engines by source, each unpacked once into a cache folder that several processes may share.

    <cache_dir>/engines/<key>/      an engine, whole
    <cache_dir>/sources/<digest>    the key of the engine that a source last led to

An engine's key is the digest of its manifest. Without a manifest (tars of the original cog-trt-llm) it is the
source together with what changes when its content does: ETag, Last-Modified and size of a URL, size, time and
inode of a file. If a server tells none of them, such a tar is fetched anew each time.
"""

import hashlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from engine.cache.lease import Lease, lock_path_of, make_room
from engine.directory import Engine, load
from engine.disk import writing
from engine.download.body import DEFAULT_TRANSFER, Transfer
from engine.download.fetch import Source, fetch, local_path
from engine.lock import locked
from engine.progress import Progress
from engine.staging import discard, remove_stale, staged
from engine.tar.contents import ContentReader
from engine.tar.manifest import Manifest, content_key
from engine.tar.unpack import unpack_content
from errors.coded_error import CodedError
from errors.download import SourceFailed, SourceForbidden, SourceUnreachable


def open_engine(
    source: str | Path,
    cache_dir: Path,
    *,
    limit_bytes: int | None = None,
    check: Callable[[Manifest], None] = lambda manifest: None,
    on_the_way: Callable[[Engine], None] = lambda engine: None,
    progress: Progress | None = None,
    transfer: Transfer = DEFAULT_TRANSFER,
) -> Engine:
    """Open the engine in a directory, a tar or behind a URL, so that it can be loaded from a directory.

    Tars are unpacked below ``cache_dir``, or found there. If the source is unavailable (server down,
    signature expired), the engine that it last contained is used, with a warning. Before an engine is
    unpacked, unused ones are removed, the least recently used first, until all are within ``limit_bytes``.
    ``check`` rejects an engine by raising: it gets the manifest before the rest is downloaded. ``on_the_way``
    is called with the manifest and the future path of an engine before it is unpacked. Raises the errors of
    ``load``, ``fetch``, ``unpack`` and ``check``.
    """
    path = local_path(source)
    if path is not None and path.is_dir():
        engine = load(path)
    else:
        engine = _Cache(cache_dir, limit_bytes, check, on_the_way, progress).open(source, transfer)
    check(engine.manifest)
    return engine


@dataclass(frozen=True)
class _Cache:
    folder: Path
    limit_bytes: int | None
    check: Callable[[Manifest], None]
    on_the_way: Callable[[Engine], None]
    progress: Progress | None

    def open(self, source: str | Path, transfer: Transfer) -> Engine:
        with writing(self.folder):
            self._engines.mkdir(parents=True, exist_ok=True)
            (self.folder / "sources").mkdir(exist_ok=True)
            remove_stale(self._engines)
        try:
            stream = fetch(source, transfer=transfer)
        except (SourceUnreachable, SourceForbidden, SourceFailed) as error:
            if (engine := self._last_known(source)) is None:
                raise
            warning = f"Its source could not be asked, so what it held before is used: {error.sentence}"
            return replace(engine, warnings=(*engine.warnings, warning))
        with stream:
            return self._open(stream, source)

    @property
    def _engines(self) -> Path:
        return self.folder / "engines"

    def _open(self, stream: Source, source: str | Path) -> Engine:
        reader = ContentReader(stream, stream.place, stream.size_bytes)
        if reader.manifest is not None:
            self.check(reader.manifest)
            key, is_content_known = content_key(reader.manifest), True
        else:
            key, is_content_known = _digest(f"{_name(source)} {stream.identity}"), stream.identity is not None
        with self._locked(key):
            engine = self._load(key) if is_content_known else None
            if engine is None:
                engine = self._unpack(key, reader, stream.size_bytes)
            self._remember(source, key)
        return engine

    def _last_known(self, source: str | Path) -> Engine | None:
        try:
            key = self._record(source).read_text()
        except OSError:
            return None
        with self._locked(key):
            return self._load(key)

    def _load(self, key: str) -> Engine | None:
        try:
            return _leased(load(self._engines / key))
        except CodedError:
            return None  # Missing or damaged: it is fetched again.

    def _unpack(self, key: str, reader: ContentReader, size_bytes: int | None) -> Engine:
        target, manifest = self._engines / key, reader.manifest
        if target.exists():
            discard(target)
        if self.limit_bytes is not None:
            wanted_bytes = manifest.size_bytes if manifest is not None else size_bytes or 0
            make_room(self._engines, wanted_bytes, self.limit_bytes)
        if manifest is not None:
            self.on_the_way(Engine(target, manifest, ()))
        unpack_content(reader, target, self.progress)
        return _leased(load(target) if manifest is None else Engine(target, manifest, ()))

    def _remember(self, source: str | Path, key: str) -> None:
        with staged(self._record(source)) as record, writing(record):
            record.write_text(key)

    def _record(self, source: str | Path) -> Path:
        return self.folder / "sources" / _digest(_name(source))

    @contextmanager
    def _locked(self, key: str) -> Iterator[None]:
        """Let one process unpack an engine; others that need the same engine wait, then find it."""
        path = lock_path_of(self._engines / key)

        def tell() -> None:
            if self.progress:
                self.progress(0, None, "waiting for another process that unpacks this engine")

        with ExitStack() as held:
            with writing(path):
                held.enter_context(locked(path, tell))
            yield


def _leased(engine: Engine) -> Engine:
    return replace(engine, lease=Lease(engine.path))


def _name(source: str | Path) -> str:
    """Return what stands for a source in a digest: a URL without user and password, a path in full."""
    path = local_path(source)
    if path is not None:
        return str(path.resolve())
    parts = urlsplit(str(source))
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()
