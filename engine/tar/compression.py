"""Tars may come gzipped, as cog-trt-llm's documentation has it: they are unzipped as they stream in."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager

from engine.tar.window import ByteStream
from errors.engine_tar import DamagedTar, EngineUnreadable

MAX_RATIO = 100
"""Weights compress to a half at best; a tar that grows a hundredfold is made to fill the disk."""
FREE_OUTPUT_BYTES = 1 << 30
"""Up to here any ratio will do."""

_GZIP_MAGIC = b"\x1f\x8b"


class PlainTar(io.RawIOBase):
    """The uncompressed bytes of a tar; ``size_bytes`` of them, None where unknown.

    OSErrors of the stream become EngineUnreadable here.
    """

    def __init__(self, stream: ByteStream, place: str, size_bytes: int | None) -> None:
        self.size_bytes = size_bytes
        self.done_bytes = 0
        self._stream = stream
        self._place = place
        self._again = memoryview(b"")
        self._kept: bytearray | None = None

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        if self._again:
            count = min(len(buffer), len(self._again))
            buffer[:count] = self._again[:count]
            self._again = self._again[count:]
        else:
            try:
                count = self._stream.readinto(buffer) or 0
            except OSError as exc:
                raise EngineUnreadable(place=self._place, reason=exc.strerror or str(exc)) from exc
        if self._kept is not None:
            self._kept += buffer[:count]
        self.done_bytes += count
        return count

    @contextmanager
    def read_ahead(self) -> Iterator[None]:
        """What is read inside is kept, and read again after it."""
        self._kept = bytearray()
        try:
            yield
        finally:
            self._again = memoryview(bytes(self._kept) + bytes(self._again))
            self._kept = None


def plain_tar(stream: ByteStream, place: str, size_bytes: int | None = None) -> PlainTar:
    """The tar in ``stream``, whose size on the way is ``size_bytes``, unzipped if it is gzipped."""
    if isinstance(stream, PlainTar):
        return stream
    tar = PlainTar(stream, place, size_bytes)
    magic = bytearray(len(_GZIP_MAGIC))
    filled = 0
    with tar.read_ahead():
        while filled < len(magic) and (count := tar.readinto(memoryview(magic)[filled:])):
            filled += count
    return PlainTar(_Unzipped(tar, place), place, None) if magic == _GZIP_MAGIC else tar


class _Unzipped:
    """A gzipped stream's content, within ``MAX_RATIO``."""

    def __init__(self, compressed: PlainTar, place: str) -> None:
        self._compressed = compressed
        self._gzip = gzip.GzipFile(fileobj=io.BufferedReader(compressed, 1 << 18), mode="rb")
        self._place = place
        self._output_bytes = 0

    def readinto(self, buffer: memoryview, /) -> int:
        try:
            count = self._gzip.readinto(buffer)
        except (EOFError, zlib.error, gzip.BadGzipFile) as exc:
            raise DamagedTar(place=self._place, reason=f"its compression is damaged ({exc})") from exc
        self._output_bytes += count
        if self._output_bytes > FREE_OUTPUT_BYTES + MAX_RATIO * self._compressed.done_bytes:
            raise DamagedTar(place=self._place, reason=f"it unzips to more than {MAX_RATIO} times its size")
        return count
