"""Requests of guarded paths need an API key: without one of them they get 401."""

from starlette.types import ASGIApp, Receive, Scope, Send

from errors.api import InvalidAPIKey
from runner.api.call import call_of
from runner.api.error_response import ErrorResponse
from runner.settings.api_keys import APIKeys

_HEADERS = (b"authorization", b"x-api-key")
_GUARDED = ("/v1/", "/tokenize", "/detokenize")
ADMIN_PATHS = ("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/sleep", "/wake_up", "/is_sleeping")
"""Paths that need another key: one of ADMIN_API_KEYS (``runner.api.admin.endpoints``)."""


def is_guarded(path: str) -> bool:
    """Return False for the page, its description, health, readiness and metrics."""
    return path.startswith(_GUARDED) and path not in ADMIN_PATHS


def find_key(scope: Scope, keys: APIKeys) -> str | None:
    """Find one of the keys in the request's headers."""
    headers = {name: value for name, value in reversed(scope["headers"]) if name in _HEADERS}
    own = headers.get(b"x-api-key")  # Of Anthropic's clients, which may send both.
    given = headers.get(b"authorization", b""), b"" if own is None else b"Bearer " + own
    return next(filter(None, map(keys.find, given)), None)


class RequireKey:
    """Middleware that checks the key of guarded paths, before the body is read."""

    def __init__(self, app: ASGIApp, keys: APIKeys) -> None:
        self._app = app
        self._keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if is_guarded(scope["path"]):
            if (key := find_key(scope, self._keys)) is None:
                await ErrorResponse(InvalidAPIKey())(scope, receive, send)
                return
            call_of(scope).api_key = key
        await self._app(scope, receive, send)
