"""API keys: a request without one of them gets 401."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from errors.api import InvalidAPIKey
from runner.api.error_response import ErrorResponse

_GUARDED = ("/v1/", "/tokenize", "/detokenize")
_SCHEME = "bearer"


def is_guarded(path: str) -> bool:
    """False for the page, its description, health, readiness and metrics."""
    return path.startswith(_GUARDED)


class RequireKey:
    """Middleware that checks the key of guarded paths."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and is_guarded(scope["path"]) and not self._has_key(scope):
            await ErrorResponse(InvalidAPIKey())(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        scheme, _, key = HTTPConnection(scope).headers.get("authorization", "").partition(" ")
        given = key.strip().encode()
        # Each comparison takes constant time, and all are made: the time reveals nothing about the keys.
        matches = [hmac.compare_digest(given, each) for each in self._keys]
        return scheme.lower() == _SCHEME and any(matches)
