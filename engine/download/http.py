"""One HTTP(S) GET at a time: connections kept alive, redirects followed, every failure a coded error."""

from __future__ import annotations

import http.client
import re
import socket
import ssl
import threading
from typing import NoReturn
from urllib.parse import SplitResult, urljoin, urlsplit

from engine.download.connect import credentials, new_connection, proxy_for, request_target, split_url
from engine.redact import redact_url
from errors.coded_error import CodedError
from errors.download import RedirectRefused, SourceFailed, SourceForbidden, SourceNotFound, SourceUnreachable

MAX_REDIRECTS = 10
MAX_RETRY_AFTER_S = 60.0

_REDIRECTS = (301, 302, 303, 307, 308)
_TEMPORARY = (408, 425, 429, 500, 502, 503, 504)
_SIGNATURE = re.compile(r"(^|&)(x-amz-|x-goog-)?(signature|sig|expires|token)=", re.IGNORECASE)


class Temporary(Exception):
    """A failure that another attempt may cure; ``error`` is what to raise if none does."""

    def __init__(self, error: CodedError, retry_after_s: float = 0.0) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after_s = retry_after_s


class Target:
    """A URL, and where its redirects led: shared by all connections that read from it."""

    def __init__(self, url: str, *, only_public: bool = False) -> None:
        """``only_public``: the URL is not the operator's, and must not lead into our own network."""
        self.only_public = only_public
        self.shown = redact_url(url)
        self.parts = split_url(url)
        self.resolved = self.parts
        """Set by any thread; the worst that a race can do is one redirect more."""


class Connection:
    """Keeps one connection alive between GETs. For one thread alone, less ``abort``."""

    def __init__(self, target: Target, timeout_s: float) -> None:
        self._target = target
        self._timeout_s = timeout_s
        self._origin: tuple[str, str] | None = None
        self._connection: http.client.HTTPConnection | None = None
        self._response: http.client.HTTPResponse | None = None
        self._socket: socket.socket | None = None
        self._aborted = threading.Event()

    def get(self, headers: dict[str, str]) -> http.client.HTTPResponse:
        """The answer (200 or 206) to a GET of the target. Raises coded errors, or Temporary."""
        url = start = self._target.resolved
        for _ in range(MAX_REDIRECTS + 1):
            response = self._get_once(url, headers)
            if response.status in (200, 206):
                self._target.resolved = url
                return response
            self.close()
            if response.status not in _REDIRECTS:
                self._refuse(response, start)
            url = self._redirected(url, response)
        raise RedirectRefused(source=self._target.shown, reason=f"more than {MAX_REDIRECTS} times")

    def read(self, response: http.client.HTTPResponse, buffer: memoryview) -> int:
        """Read on in the body; 0 at its end. Temporary if the connection breaks."""
        try:
            return response.readinto(buffer)
        except (OSError, http.client.HTTPException, ValueError) as exc:
            raise Temporary(self._unreachable(exc)) from exc

    def close(self) -> None:
        if self._response is not None:
            self._response.close()
        if self._connection is not None:
            self._connection.close()
        self._response = self._connection = self._socket = None

    def abort(self) -> None:
        """From another thread: end what the connection waits for, now and ever after."""
        self._aborted.set()
        if (waiting := self._socket) is not None:
            try:
                # NOTE: not SSLSocket's own shutdown, which takes the TLS object away under the reader.
                socket.socket.shutdown(waiting, socket.SHUT_RDWR)
            except OSError:
                pass  # it is closed already

    def _get_once(self, url: SplitResult, headers: dict[str, str]) -> http.client.HTTPResponse:
        if self._origin != (url.scheme, url.netloc) or not self._is_idle():
            self.close()
        was_open = self._connection is not None and self._connection.sock is not None
        try:
            try:
                return self._request(url, headers)
            except ConnectionError:  # RemoteDisconnected is one
                if not was_open:
                    raise
                self.close()  # the server gave up the idle connection just now: that is no failure yet
                return self._request(url, headers)
        except (OSError, http.client.HTTPException, UnicodeError) as exc:
            self.close()
            if _is_final(exc):
                raise self._unreachable(exc) from exc
            raise Temporary(self._unreachable(exc)) from exc

    def _is_idle(self) -> bool:
        return self._response is None or self._response.isclosed()

    def _request(self, url: SplitResult, headers: dict[str, str]) -> http.client.HTTPResponse:
        proxy = proxy_for(url)
        if self._connection is None:
            only_public = self._target.only_public
            self._connection = new_connection(url, proxy, self._timeout_s, only_public=only_public)
            self._origin = url.scheme, url.netloc
        headers = {"Accept-Encoding": "identity", "User-Agent": "cog-triton", **headers}
        headers |= self._authorization(url)
        if proxy is not None and url.scheme == "http":
            headers |= credentials("Proxy-Authorization", proxy)
        self._connection.request("GET", request_target(url, proxy), headers=headers)
        self._socket = self._connection.sock
        if self._aborted.is_set():
            raise ConnectionAbortedError("it is no longer wanted")
        self._response = self._connection.getresponse()
        return self._response

    def _authorization(self, url: SplitResult) -> dict[str, str]:
        """User and password of the URL go to its own origin alone, whatever it redirects to."""
        own = self._target.parts
        is_own = (url.scheme, url.hostname, url.port) == (own.scheme, own.hostname, own.port)
        return credentials("Authorization", own if is_own and url.username is None else url)

    def _redirected(self, url: SplitResult, response: http.client.HTTPResponse) -> SplitResult:
        location = response.headers.get("Location")
        if not location:
            raise SourceFailed(source=self._target.shown, reason=f"HTTP {response.status} without a location")
        try:
            to = urljoin(url.geturl(), location)
            scheme = urlsplit(to).scheme
        except ValueError as exc:
            raise RedirectRefused(source=self._target.shown, reason="to something that is no URL") from exc
        if scheme not in ("http", "https") or (scheme == "http" and url.scheme == "https"):
            raise RedirectRefused(source=self._target.shown, reason=f"to {scheme}, which is less safe")
        return split_url(to)

    def _refuse(self, response: http.client.HTTPResponse, start: SplitResult) -> NoReturn:
        source, status = self._target.shown, response.status
        error: CodedError = SourceFailed(
            source=source, reason=f"HTTP {status} {response.reason}".strip(), status=status
        )
        if status in (404, 410):
            error = SourceNotFound(source=source, status=status)
        elif status in (401, 403, 407):
            reason = _why_forbidden(self._target.parts.query, status)
            error = SourceForbidden(source=source, reason=reason, status=status)
        elif status in _TEMPORARY:
            raise Temporary(error, _retry_after_s(response))
        if start != self._target.parts:
            # NOTE: what a redirect led to may be signed for some minutes only; the URL itself is asked again.
            if self._target.resolved == start:
                self._target.resolved = self._target.parts
            raise Temporary(error)
        raise error

    def _unreachable(self, exc: Exception) -> SourceUnreachable:
        return SourceUnreachable(source=self._target.shown, reason=_reason(exc))


def _is_final(exc: Exception) -> bool:
    if isinstance(exc, socket.gaierror):
        return exc.errno == socket.EAI_NONAME
    return isinstance(exc, (ssl.SSLCertVerificationError, http.client.InvalidURL, UnicodeError))


def _why_forbidden(query: str, status: int) -> str:
    if _SIGNATURE.search(query):
        return "it is a signed URL, whose signature may have expired: ask for a new one"
    if status == 401:
        return "it wants credentials, or other ones: give them as https://user:password@host/..."
    return "this server grants no access to it: check the URL and your rights"


def _retry_after_s(response: http.client.HTTPResponse) -> float:
    seconds = response.headers.get("Retry-After", "")
    return min(float(seconds), MAX_RETRY_AFTER_S) if seconds.isascii() and seconds.isdigit() else 0.0


def _reason(exc: Exception) -> str:
    if isinstance(exc, ConnectionRefusedError):
        return "nothing listens there"
    if isinstance(exc, socket.gaierror):
        return "its host name does not resolve"
    if isinstance(exc, TimeoutError):
        return "it does not answer"
    return str(exc) or type(exc).__name__
