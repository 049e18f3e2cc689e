"""API keys: who has none of them gets 401."""

from __future__ import annotations

import hmac
from collections.abc import Sequence

from starlette.requests import HTTPConnection
from starlette.types import ASGIApp, Receive, Scope, Send

from errors.api import InvalidAPIKey
from runner.api.error_response import Failure

_GUARDED = ("/v1/", "/tokenize", "/detokenize")
_SCHEME = "bearer"


def is_guarded(path: str) -> bool:
    """True for what costs or tells something; the page, health, readiness and metrics are open."""
    return path.startswith(_GUARDED)


class RequireKey:
    """Middleware in front of what is guarded."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        self._keys = [key.encode() for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and is_guarded(scope["path"]) and not self._has_key(scope):
            await Failure(InvalidAPIKey())(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        scheme, _, key = HTTPConnection(scope).headers.get("authorization", "").partition(" ")
        given = key.strip().encode()
        # All are compared, each in constant time: the time tells nothing about any.
        matches = [hmac.compare_digest(given, each) for each in self._keys]
        return scheme.lower() == _SCHEME and any(matches)
