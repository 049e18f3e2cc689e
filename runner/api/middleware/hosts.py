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
    """Middleware that refuses a ``Host`` other than loopback and ``hosts``, but for ``_OPEN_PATHS``."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str]) -> None:
        self._app = app
        self._hosts = frozenset(map(str.lower, hosts))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        given = [value.decode("latin-1") for name, value in scope["headers"] if name == b"host"]
        refused = next((host for host in given if not self._is_allowed(host)), None)
        if refused is not None and scope["path"] not in _OPEN_PATHS:
            await ErrorResponse(HostNotAllowed(host=refused[:100]))(scope, receive, send)
            return
        await self._app(scope, receive, send)

    def _is_allowed(self, host: str) -> bool:
        name, colon, port = host.rpartition(":")
        name = (name if colon and port.isdecimal() else host).strip("[]").lower().rstrip(".")
        return name in self._hosts or _ANY in self._hosts or _is_loopback(name)


@lru_cache(64)
def _is_loopback(name: str) -> bool:
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
