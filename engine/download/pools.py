"""urllib3's connection pools with the environment's proxies, refused private addresses, and an abort."""

from __future__ import annotations

import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import urllib3
from urllib3 import exceptions
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util import Url

from engine.download.address import connect_to_public, require_public_host
from engine.download.url import credentials, proxy_for


class Pools:
    """For any number of threads. ``only_public``: see ``engine.download.address``."""

    def __init__(self, *, only_public: bool, timeout_s: float, connections: int) -> None:
        self._only_public = only_public
        self._options: dict[str, Any] = {"timeout": timeout_s, "maxsize": connections, "retries": False}
        self._guard = threading.Lock()
        self._managers: dict[tuple[str | None, Url | None], urllib3.PoolManager] = {}
        """By scheme and proxy."""
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._is_aborted = False

    def request(
        self, method: str, url: Url, headers: Mapping[str, str], body: bytes | Iterable[bytes] | None = None
    ) -> urllib3.BaseHTTPResponse:
        """The response, its body unread; redirects are not followed, credentials in ``url`` not sent.

        Raises urllib3's HTTPError and AddressRefused.
        """
        proxy = proxy_for(url)
        if proxy is not None and self._only_public and url.host is not None:
            require_public_host(url.host.strip("[]"), url.port or 443)
        manager = self._manager(url, proxy)
        place = url._replace(auth=None).url
        return manager.request(
            method, place, body=body, headers=headers, redirect=False, preload_content=False
        )

    def close_idle(self) -> None:
        with self._guard:
            for manager in self._managers.values():
                manager.clear()

    def abort(self) -> None:
        with self._guard:
            self._is_aborted = True
            sockets = list(self._sockets)
        for each in sockets:
            try:
                # NOTE: not SSLSocket's own shutdown, which takes the TLS object away under the reader.
                socket.socket.shutdown(each, socket.SHUT_RDWR)
            except OSError:
                pass  # it is closed already
        self.close_idle()

    def _manager(self, url: Url, proxy: Url | None) -> urllib3.PoolManager:
        with self._guard:
            if (manager := self._managers.get((url.scheme, proxy))) is not None:
                return manager
            options = dict(self._options)
            if url.scheme == "https":  # Reading the certificates takes 50 ms.
                options["ssl_context"] = ssl.create_default_context()
            if proxy is None:
                manager = urllib3.PoolManager(**options)
            else:
                authorization = credentials("Proxy-Authorization", proxy)
                manager = urllib3.ProxyManager(proxy.url, proxy_headers=authorization, **options)
            hooks: dict[str, Any] = {
                "opened": self._opened,
                "make_socket": connect_to_public if self._only_public and proxy is None else None,
            }
            pools: dict[str, Any] = {
                "http": partial(_HttpPool, **hooks),
                "https": partial(_HttpsPool, **hooks),
            }
            manager.pool_classes_by_scheme = pools
            self._managers[url.scheme, proxy] = manager
            return manager

    def _opened(self, connected: socket.socket) -> None:
        with self._guard:
            if self._is_aborted:
                raise ConnectionAbortedError("the download has ended")
            self._sockets.add(connected)


class _Http(HTTPConnection):
    """Passes each new socket to ``opened``; makes it with ``make_socket``, if given."""

    def __init__(
        self,
        *arguments: Any,
        opened: Callable[[socket.socket], None],
        make_socket: Callable[[tuple[str, int], float], socket.socket] | None,
        **options: Any,
    ) -> None:
        super().__init__(*arguments, **options)
        self._opened = opened
        self._make_socket = make_socket

    # NOTE: urllib3 has no public hook for this; tests/engine/download/test_address.py notices a change.
    def _new_conn(self) -> socket.socket:
        if self._make_socket is None:
            return super()._new_conn()
        assert isinstance(self.timeout, float)
        return self._make_socket((self._dns_host, self.port), self.timeout)

    def connect(self) -> None:
        super().connect()
        if isinstance(self.sock, socket.socket):  # It is not for TLS within an HTTPS proxy's TLS.
            self._opened(self.sock)


class _Https(_Http, HTTPSConnection):
    pass


class _HttpPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Http


class _HttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _Https


def cause_of(exc: BaseException) -> BaseException:
    """What urllib3 raised ``exc`` for: an error of the socket, of TLS or of the protocol."""
    while isinstance(exc, exceptions.HTTPError) and (inner := exc.__cause__ or exc.__context__) is not None:
        exc = inner
    return exc


def reason_of(exc: Exception) -> str:
    """Why a request or the reading of a response failed, for a message."""
    cause = cause_of(exc)
    if isinstance(cause, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(cause, socket.gaierror):
        return "its host name does not resolve"
    if isinstance(cause, (TimeoutError, exceptions.TimeoutError)):
        return "it does not answer"
    return str(cause) or type(cause).__name__
