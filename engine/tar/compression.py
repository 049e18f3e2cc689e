"""Gzipped tars, as cog-trt-llm's documentation has them: they are unzipped as they stream in."""

import gzip
import io
import zlib

from engine.tar.window import ByteStream
from errors.engine_tar import DamagedTar, EngineUnreadable

MAX_RATIO = 100
"""Limit of compression: weights compress to a half at best; a hundredfold is made to fill the disk."""
FREE_OUTPUT_BYTES = 1 << 30
"""Size up to which any ratio is allowed."""

_GZIP_MAGIC = b"\x1f\x8b"


class PlainTar(io.RawIOBase):
    """Uncompressed bytes of a tar. ``size_bytes`` is their number, None if unknown.

    It raises EngineUnreadable for OSErrors of the stream.
    """

    def __init__(self, stream: ByteStream, place: str, size_bytes: int | None) -> None:
        self.size_bytes = size_bytes
        self.done_bytes = 0
        self._stream = stream
        self._place = place
        self._peeked = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview, /) -> int:  # type: ignore[override]
        if self._peeked:
            count = min(len(buffer), len(self._peeked))
            buffer[:count], self._peeked = self._peeked[:count], self._peeked[count:]
            return count
        try:
            count = self._stream.readinto(buffer) or 0
        except OSError as exc:
            raise EngineUnreadable(place=self._place, reason=exc.strerror or str(exc)) from exc
        self.done_bytes += count
        return count

    def peek(self, size_bytes: int) -> bytes:
        """Return the first ``size_bytes``, which are read again."""
        head, filled = memoryview(bytearray(size_bytes)), 0
        while filled < size_bytes and (count := self.readinto(head[filled:])):
            filled += count
        self._peeked = bytes(head[:filled]) + self._peeked
        return bytes(head[:filled])


def plain_tar(stream: ByteStream, place: str, size_bytes: int | None = None) -> PlainTar:
    """Return the tar in ``stream``, unzipped if it is gzipped. ``size_bytes`` is its size in the stream."""
    tar = PlainTar(stream, place, size_bytes)
    is_gzipped = tar.peek(len(_GZIP_MAGIC)) == _GZIP_MAGIC
    return PlainTar(_Unzipped(tar, place), place, None) if is_gzipped else tar


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
