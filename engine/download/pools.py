"""urllib3's connection pools with the environment's proxies, refused private addresses, and an abort."""

import os
import socket
import ssl
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from typing import Any
from urllib.parse import urljoin, urlsplit

import urllib3
from urllib3 import exceptions
from urllib3.connection import HTTPConnection, HTTPSConnection
from urllib3.util import Url

from engine.download.address import connect_to_public, require_public_host
from engine.download.url import checked_url, credentials, proxy_for
from engine.redact import redact_text, redact_url
from errors.coded_error import CodedError
from errors.download import RedirectRefused, SourceFailed, SourceUnsupported

MAX_REDIRECTS = 10
REQUEST_ERRORS = (exceptions.HTTPError, RedirectRefused, SourceFailed, SourceUnsupported)

_SAME_METHOD_REDIRECTS = (307, 308)
_REDIRECTS = (301, 302, 303, *_SAME_METHOD_REDIRECTS)


class Pools:
    """Connection pools for any number of threads. ``only_public``: see ``engine.download.address``."""

    def __init__(self, *, only_public: bool, timeout_s: float, connections: int) -> None:
        self._only_public = only_public
        self._options: dict[str, Any] = {"timeout": timeout_s, "maxsize": connections, "retries": False}
        self._guard = threading.Lock()
        self._managers: dict[tuple[str | None, Url | None], urllib3.PoolManager] = {}
        """Pool managers by scheme and proxy."""
        self._sockets: weakref.WeakSet[socket.socket] = weakref.WeakSet()
        self._is_aborted = False
        self._proxy_for = cache(proxy_for)  # It reads the whole environment.

    def _request(
        self, method: str, url: Url, headers: Mapping[str, str], body: bytes | Iterable[bytes] | None
    ) -> urllib3.BaseHTTPResponse:
        """Send a request; leave the body unread. Follow no redirects, and send no credentials of ``url``."""
        proxy = self._proxy_for(url)
        if proxy is not None and self._only_public and url.host is not None:
            require_public_host(url.host.strip("[]"), url.port or 443)
        manager = self._manager(url, proxy)
        place = url._replace(auth=None).url
        return manager.request(
            method, place, body=body, headers=headers, redirect=False, preload_content=False
        )

    def follow(
        self,
        method: str,
        url: Url,
        headers: Mapping[str, str],
        body: Callable[[], bytes | Iterable[bytes] | None] = lambda: None,
        *,
        start: Url | None = None,
        authorization: Mapping[str, str] | None = None,
    ) -> tuple[urllib3.BaseHTTPResponse, Url]:
        """Follow redirects and return the response and its URL; ``start`` is where they led before.

        ``authorization`` (default: the credentials in ``url``) is sent to the origin of ``url`` alone. Other
        methods than GET and HEAD follow only redirects that keep the method. Raises REQUEST_ERRORS.
        """
        own = credentials("Authorization", url) if authorization is None else authorization
        followed = _REDIRECTS if method in ("GET", "HEAD") else _SAME_METHOD_REDIRECTS
        to = start or url
        for _ in range(MAX_REDIRECTS + 1):
            is_own = to.auth is None and (to.scheme, to.host, to.port) == (url.scheme, url.host, url.port)
            allowed = own if is_own else credentials("Authorization", to)
            response = self._request(method, to, {**headers, **allowed}, body())
            if response.status not in followed:
                return response, to
            response.close()
            to = _redirected(url, to, response)
        raise RedirectRefused(source=redact_url(url.url), reason=f"more than {MAX_REDIRECTS} times")

    def close_idle(self) -> None:
        with self._guard:
            for manager in self._managers.values():
                manager.clear()

    def abort(self) -> None:
        """End every request and response, now and ever after. Any thread may call this."""
        with self._guard:
            self._is_aborted = True
            sockets = list(self._sockets)
        for each in sockets:
            try:
                # NOTE: SSLSocket's own shutdown takes the TLS object away under the reader.
                socket.socket.shutdown(each, socket.SHUT_RDWR)
            except OSError:
                pass  # it is closed already
        self.close_idle()

    def _manager(self, url: Url, proxy: Url | None) -> urllib3.PoolManager:
        with self._guard:
            if (manager := self._managers.get((url.scheme, proxy))) is not None:
                return manager
            options = dict(self._options)
            if url.scheme == "https":
                options["ssl_context"] = _tls_context(*map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")))
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


@cache
def _tls_context(certificate_file: str | None, certificate_folder: str | None) -> ssl.SSLContext:
    """Make one context for all downloads with these variables: reading the certificates takes 50 ms."""
    return ssl.create_default_context()


class _Http(HTTPConnection):
    """HTTP pool that passes each new socket to ``opened`` and makes it with ``make_socket``, if given."""

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
        if isinstance(self.sock, socket.socket):  # TLS within an HTTPS proxy's TLS has none.
            self._opened(self.sock)


class _Https(_Http, HTTPSConnection):
    pass


class _HttpPool(urllib3.HTTPConnectionPool):
    ConnectionCls = _Http


class _HttpsPool(urllib3.HTTPSConnectionPool):
    ConnectionCls = _Https


def _redirected(url: Url, last: Url, response: urllib3.BaseHTTPResponse) -> Url:
    source = redact_url(url.url)
    location = response.headers.get("Location")
    if not location:
        raise SourceFailed(source=source, reason=f"HTTP {response.status} without a location")
    try:
        to = urljoin(last.url, location)
        scheme = urlsplit(to).scheme
    except ValueError as exc:
        raise RedirectRefused(source=source, reason="to something that is no URL") from exc
    if scheme not in ("http", "https") or (scheme == "http" and last.scheme == "https"):
        raise RedirectRefused(source=source, reason=f"to {scheme}, which is less safe")
    return checked_url(to)


def cause_of(exc: BaseException) -> BaseException:
    """Return what urllib3 raised ``exc`` for: an error of the socket, of TLS or of the protocol."""
    while isinstance(exc, exceptions.HTTPError) and (inner := exc.__cause__ or exc.__context__) is not None:
        exc = inner
    return exc


def reason_of(exc: Exception) -> str:
    """Return why a request or the reading of a response failed, for a message."""
    if isinstance(exc, CodedError):
        return exc.sentence
    cause = cause_of(exc)
    if isinstance(cause, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(cause, socket.gaierror):
        return "its host name does not resolve"
    if isinstance(cause, (TimeoutError, exceptions.TimeoutError)):
        return "it does not answer"
    return redact_text(str(cause)) or type(cause).__name__
