"""Host names that the server answers for.

A page on any site can make its own name lead to this machine (DNS rebinding): to a browser, a server on
loopback is then a part of that site. The name is still in the request's ``Host``.
"""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache

from starlette.types import ASGIApp, Receive, Scope, Send

from errors.api import HostNotAllowed
from runner.api.error_response import ErrorResponse
from runner.settings.api_settings import APISettings

_ANY = "*"
_OPEN_PATHS = ("/health", "/ready", "/metrics")
"""Paths for Kubernetes, load balancers and Prometheus, which use any name or address they know."""


def restricts_hosts(settings: APISettings) -> bool:
    """Return True if hosts are set, or on loopback without keys, where only local programs are expected."""
    return bool(settings.allowed_hosts) or (_is_loopback(settings.openai_host) and not settings.api_keys)


class AllowedHosts:
    """Middleware that refuses a ``Host`` other than loopback and ``hosts``, except for ``_OPEN_PATHS``."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = frozenset(map(str.lower, hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        for name, value in scope["headers"]:
            if name == b"host" and not _is_allowed(value, self._hosts) and scope["path"] not in _OPEN_PATHS:
                host = value.decode("latin-1")[:100]
                await ErrorResponse(HostNotAllowed(host=host))(scope, receive, send)
                return
        await self._app(scope, receive, send)


@lru_cache(8)
def _is_allowed(given: bytes, hosts: frozenset[str]) -> bool:
    host = given.decode("latin-1")
    name, colon, port = host.rpartition(":")
    name = (name if colon and port.isdecimal() else host).strip("[]").lower().rstrip(".")
    return name in hosts or _ANY in hosts or _is_loopback(name)


def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
