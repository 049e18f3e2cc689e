"""Messages with an image, as each API takes them, and images for them."""

from __future__ import annotations

import struct
import zlib
from typing import Any

CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"


def image_body(path: str, url: str, text: str = "Where?") -> dict[str, Any]:
    if path == CHAT:
        part: dict[str, Any] = {"type": "image_url", "image_url": {"url": url, "detail": "low"}}
        texts = [{"type": "text", "text": each} for each in ("See:", text)]
        return {"messages": [{"role": "user", "content": [texts[0], part, texts[1]]}]}
    if path == RESPONSES:
        part = {"type": "input_image", "image_url": url, "detail": "auto"}
        texts = [{"type": "input_text", "text": each} for each in ("See:", text)]
        return {"input": [{"role": "user", "content": [texts[0], part, texts[1]]}]}
    source = {"type": "url", "url": url}
    if url.startswith("data:"):
        media_type, _, data = url.removeprefix("data:").partition(";base64,")
        source = {"type": "base64", "media_type": media_type, "data": data}
    texts = [{"type": "text", "text": each} for each in ("See:", text)]
    content = [texts[0], {"type": "image", "source": source}, texts[1]]
    return {"messages": [{"role": "user", "content": content}], "max_tokens": 99}


def png(width: int, height: int, color: int, *, is_whole: bool = True) -> bytes:
    """Return a gray image; with ``is_whole`` False, its header with hardly any content."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = (b"\0" + bytes([color]) * width) * (height if is_whole else 1)
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
