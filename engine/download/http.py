"""GETs of one URL with urllib3: redirects checked and remembered, every failure a coded error."""

import http.client
import re
import socket
import ssl
from collections.abc import Mapping
from typing import NoReturn

import urllib3
from urllib3.exceptions import HTTPError, InvalidHeader, LocationValueError
from urllib3.util import Retry, Url

from engine.download.pools import Pools, cause_of, reason_of
from engine.download.url import checked_url
from engine.redact import redact_url
from errors.coded_error import CodedError
from errors.download import SourceFailed, SourceForbidden, SourceNotFound, SourceUnreachable

MAX_RETRY_AFTER_S = 300.0

_HEADERS = {"Accept-Encoding": "identity", "User-Agent": "cog-triton"}
_TEMPORARY = (408, 425, 429)
"""Status codes of temporary failures, besides every 5xx."""
_BUSY = (429, 503)
"""Status codes by which a server refuses one more connection."""
_LIMIT_RESET = re.compile(r";\s*t=(\d{1,6})\b")
_SIGNATURE = re.compile(r"(^|&)(x-amz-|x-goog-)?(signature|sig|expires|token)=", re.IGNORECASE)


class Temporary(Exception):
    """A failure that another attempt may cure; ``error`` is what to raise if none does."""

    def __init__(self, error: CodedError, retry_after_s: float = 0.0) -> None:
        super().__init__(str(error))
        self.error = error
        self.retry_after_s = retry_after_s


def is_refused(error: CodedError) -> bool:
    """Return True if several attempts found the server busy or not there, as one that limits connections."""
    is_busy = isinstance(error, SourceUnreachable) or error.facts.get("status") in _BUSY
    return is_busy and isinstance(error.__cause__, Temporary)


class Client:
    """HTTP client for GETs of one URL from any number of threads, over connections that are kept alive."""

    def __init__(
        self,
        url: str,
        *,
        only_public: bool,
        timeout_s: float,
        connections: int,
        authorization: str | None = None,
    ) -> None:
        """Prepare requests. ``only_public``: refuse private addresses, see ``engine.download.address``.

        ``authorization`` is a header's value. Only the URL's own origin gets it.
        """
        self.shown = redact_url(url)
        self._url = checked_url(url)
        self._authorization = None if authorization is None else {"Authorization": authorization}
        self._resolved = self._url
        """URL to which the last redirects led. Any thread may set it; a race costs one more redirect."""
        self.pools = Pools(only_public=only_public, timeout_s=timeout_s, connections=connections)

    def get(self, headers: dict[str, str]) -> urllib3.BaseHTTPResponse:
        """Request the URL and return a response (200, 206) to close. Raises coded errors, or Temporary."""
        start = self._resolved
        try:
            response, url = self.pools.follow(
                "GET", self._url, {**_HEADERS, **headers}, start=start, authorization=self._authorization
            )
        except HTTPError as exc:
            if _is_final(exc):
                raise self._unreachable(exc) from exc
            raise Temporary(self._unreachable(exc)) from exc
        if response.status not in (200, 206):
            response.close()
            self._refuse(response, start)
        self._resolved = url
        return response

    def read(self, response: urllib3.BaseHTTPResponse, buffer: memoryview) -> int:
        """Fill ``buffer``. Return 0 at the body's end. Raises Temporary if the connection breaks."""
        # NOTE: urllib3's own readinto reads into new memory and copies from there.
        body: http.client.HTTPResponse = response._original_response  # type: ignore[attr-defined]
        try:
            count = body.readinto(buffer)
        except (OSError, http.client.HTTPException, ValueError) as exc:
            response.close()
            raise Temporary(self._unreachable(exc)) from exc
        if body.isclosed():
            response.release_conn()
        return count

    def _refuse(self, response: urllib3.BaseHTTPResponse, start: Url) -> NoReturn:
        source, status = self.shown, response.status
        reason = f"HTTP {status} {response.reason or ''}".strip()
        error: CodedError = SourceFailed(source=source, reason=reason, status=status)
        if status in (404, 410):
            error = SourceNotFound(source=source, status=status)
        elif status in (401, 403, 407):
            reason = _why_forbidden(self._url.query or "", status)
            error = SourceForbidden(source=source, reason=reason, status=status)
        elif status in _TEMPORARY or status >= 500:
            raise Temporary(error, retry_after_s(response.headers))
        if start != self._url:
            # NOTE: what a redirect led to may be signed for some minutes only; the URL itself is asked again.
            if self._resolved == start:
                self._resolved = self._url
            raise Temporary(error)
        raise error

    def _unreachable(self, exc: Exception) -> SourceUnreachable:
        return SourceUnreachable(source=self.shown, reason=reason_of(exc))


def _is_final(exc: Exception) -> bool:
    cause = cause_of(exc)
    if isinstance(cause, socket.gaierror):
        return cause.errno == socket.EAI_NONAME
    return isinstance(
        cause, (ssl.SSLCertVerificationError, http.client.InvalidURL, UnicodeError, LocationValueError)
    )


def _why_forbidden(query: str, status: int) -> str:
    if _SIGNATURE.search(query):
        return "it is a signed URL, whose signature may have expired: ask for a new one"
    if status == 401:
        return "it wants credentials, or other ones: give them as https://user:password@host/..."
    return "this server grants no access to it: check the URL and your rights"


def retry_after_s(headers: Mapping[str, str]) -> float:
    """Return how long a server asks to wait: Retry-After, or the reset in RateLimit, as the Hub has it."""
    told, wait_s = headers.get("Retry-After"), None
    try:
        wait_s = None if told is None else Retry().parse_retry_after(told)
    except InvalidHeader:
        pass
    if wait_s is None and (reset := _LIMIT_RESET.search(headers.get("RateLimit", ""))):
        wait_s = float(reset[1])
    return min(wait_s or 0.0, MAX_RETRY_AFTER_S)
