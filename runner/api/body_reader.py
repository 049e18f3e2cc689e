"""Reading of a request's JSON body, whose bounds are checked before it is parsed."""

import asyncio
from typing import TypeVar

import msgspec
from starlette.requests import ClientDisconnect, Request

from errors.api import BodyTooLarge, InvalidBody, UnsupportedContentType
from runner.api.call import call_of
from runner.api.validation import decode
from runner.settings.api_settings import APISettings
from runner.supervision.json_bounds import JSONBounds

_MAX_LENGTH_DIGITS = 18
_LARGE_BYTES = 1 << 16
"""Size above which a body may take tens of milliseconds to parse: one at a time, and in a thread."""
_HEAVY_BYTES = 4 << 20
"""Size above which one document at a time is in memory, until its body is used."""
_VALUE_BYTES = 64

B = TypeVar("B", bound=msgspec.Struct)


class BodyReader:
    def __init__(self, settings: APISettings) -> None:
        self._max_bytes = settings.openai_max_body_bytes
        self._max_values = settings.openai_max_body_values
        self._parsing = asyncio.Lock()
        self._heavy = asyncio.Lock()

    async def read(self, request: Request, kind: type[B]) -> B:
        """Read the body. Raises E1608, E1606, E1600, E1601, or E1005 with the field; ClientDisconnect."""
        headers = dict(request.scope["headers"])
        _check_content_type(headers.get(b"content-type", b"").decode("latin-1"))
        bounds = JSONBounds(self._max_values, "send less, or raise OPENAI_MAX_BODY_VALUES", InvalidBody)
        content = await self._receive(request, headers.get(b"content-length", b""), bounds)
        if len(content) <= _LARGE_BYTES:
            return decode(content, kind)
        call_of(request.scope).is_large = True
        # NOTE: one emoji makes four bytes of each character of its string.
        text_bytes = len(content) * (1 if content.isascii() else 4)
        if _VALUE_BYTES * bounds.num_values + text_bytes > _HEAVY_BYTES:
            await self._heavy.acquire()
            call_of(request.scope).on_release.append(self._heavy.release)
        async with self._parsing:
            return await asyncio.to_thread(decode, content, kind)

    async def _receive(self, request: Request, length: bytes, bounds: JSONBounds) -> bytearray:
        if length.isdigit() and (len(length) > _MAX_LENGTH_DIGITS or int(length) > self._max_bytes):
            raise BodyTooLarge(max_bytes=self._max_bytes)
        content = bytearray()
        has_more = True
        while has_more:
            message = await request.receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            part, has_more = message.get("body", b""), message.get("more_body", False)
            if len(content) + len(part) > self._max_bytes:
                raise BodyTooLarge(max_bytes=self._max_bytes)
            bounds.feed(part)
            content += part
        return content


def _check_content_type(given: str) -> None:
    """Raise E1608 unless the body's type is JSON.

    NOTE: without a content type, or with that of a form or of plain text, a page on any site could make a
    browser send the request, without asking this server first (CORS).
    """
    kind = given.partition(";")[0].strip().lower()
    if kind != "application/json" and not (kind.startswith("application/") and kind.endswith("+json")):
        raise UnsupportedContentType(given=given)
