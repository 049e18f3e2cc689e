"""A request's body: bytes within the limit, JSON, and the fields of its endpoint."""

from __future__ import annotations

from typing import TypeVar

import msgspec
from starlette.requests import Request

from errors.api import BodyTooLarge, InvalidBody
from runner.api.validation import check_document

B = TypeVar("B", bound=msgspec.Struct)

_MAX_LENGTH_DIGITS = 18


async def read_body(request: Request, kind: type[B], max_bytes: int) -> B:
    """Raises E1606, E1600, E1601, or E1005 with the field; ClientDisconnect if the client leaves."""
    content = await _read(request, max_bytes)
    try:
        try:
            return msgspec.json.decode(content, type=kind)
        except msgspec.ValidationError as exc:
            # NOTE: msgspec validates while it reads: only now it is known whether all of it is JSON.
            check_document(msgspec.json.decode(content), kind)
            raise InvalidBody(
                reason=f"it is not valid ({exc})"
            ) from exc  # Such as a field that is given twice.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as exc:
        raise InvalidBody(reason=f"it is not JSON ({exc})".replace("\n", " ")) from exc


async def _read(request: Request, max_bytes: int) -> bytes:
    length = request.headers.get("content-length", "")
    if length.isdecimal() and (len(length) > _MAX_LENGTH_DIGITS or int(length) > max_bytes):
        raise BodyTooLarge(max_bytes=max_bytes)
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > max_bytes:
            raise BodyTooLarge(max_bytes=max_bytes)
    return bytes(content)
