"""Rules of RFC 9110 and RFC 9112 for requests, beyond httptools', and the meaning of its refusals."""

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from email.utils import formatdate
from functools import lru_cache
from urllib.parse import unquote

from httptools import HttpParserError, HttpParserInvalidMethodError

from errors.api import InvalidHTTP, UnsupportedHTTP
from errors.coded_error import CodedError

RULED_HEADERS = frozenset((b"host", b"transfer-encoding", b"content-encoding", b"expect"))
ALLOWED_METHODS = b"GET, HEAD, POST"
"""Methods of the server as a whole, for ``OPTIONS *``."""
_METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE")
_VERSIONS = ("1.0", "1.1")
_HOST = re.compile(rb"(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._~!$&'()*+,;=%-]*)(?::[0-9]*)?")
_TOKEN = rb"[!#$%&'*+.^_`|~0-9A-Za-z-]"
_REQUEST_LINE = re.compile(rb"(?<!%b)(%b+) \S+ HTTP/1\.[01]\r\n" % (_TOKEN, _TOKEN))
"""NOTE: it begins only where a token begins, or its time would grow with the square of the data."""
_SEARCHED_BYTES = 1 << 14


@dataclass(frozen=True)
class Target:
    """Target of a request."""

    path: str
    raw_path: bytes
    query: bytes
    authority: bytes | None
    """The host in the target itself, which then counts instead of the Host header."""


@lru_cache(8)
def split_target(method: bytes, target: bytes) -> Target:
    """Split the target. Raises E1610 if it is neither a path nor a URL, nor the ``*`` of OPTIONS."""
    if target == b"*" and method == b"OPTIONS":
        return Target("*", b"*", b"", None)
    authority = None
    rest = target.partition(b"#")[0]
    if not rest.startswith(b"/"):
        scheme, _, rest = rest.partition(b"://")
        authority, _, _ = re.split(rb"([/?])", rest + b"/", maxsplit=1)
        rest = rest[len(authority) :]
        if scheme.lower() not in (b"http", b"https") or not authority or not _HOST.fullmatch(authority):
            raise InvalidHTTP(reason="its target is neither a path nor a URL")
    raw_path, _, query = rest.partition(b"?")
    return Target(unquote(raw_path.decode("latin-1")), raw_path, query, authority)


def check_head(version: str, headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Check the RULED_HEADERS, with lower-case names. Return True if the client waits for a 100.

    Raises E1610 and E1615.
    """
    if version not in _VERSIONS:
        raise _unsupported(505, f"HTTP/{version}", "send HTTP/1.1")
    found: dict[bytes, list[bytes]] = {}
    for name, value in headers:
        if name in RULED_HEADERS:
            found.setdefault(name, []).append(value)
    hosts = found.get(b"host", [])
    if len(hosts) > 1 or (hosts and not _HOST.fullmatch(hosts[0])):
        raise InvalidHTTP(reason="it has several Host headers, or one that is no host")
    if not hosts and version == "1.1":
        raise InvalidHTTP(reason="it has no Host header")
    for coding in _elements(found, b"transfer-encoding"):
        if version == "1.0":
            raise InvalidHTTP(reason="HTTP/1.0 has no transfer codings")
        if coding != "chunked":
            raise _unsupported(501, f"transfer coding {coding!r}", "send the body as it is, or chunked")
    for coding in _elements(found, b"content-encoding"):
        if coding != "identity":
            raise _unsupported(415, f"content coding {coding!r}", "send the body uncompressed")
    expectations = _elements(found, b"expect") if version == "1.1" else []
    for each in expectations:
        if each != "100-continue":
            raise _unsupported(417, f"expectation {each!r}", "leave the Expect header out")
    return bool(expectations)


def refusal_of(error: HttpParserError, data: bytes) -> CodedError:
    """Return the error for a request that httptools refused when it read ``data``, or a callback refused."""
    if isinstance(error.__context__, CodedError):
        return error.__context__
    reason = str(error)
    if "HTTP version" in reason or "PRI/" in reason or "HTTP/2" in reason:
        return _unsupported(505, "version of HTTP", "send HTTP/1.1")
    if isinstance(error, HttpParserInvalidMethodError):
        methods = [each.decode() for each in _REQUEST_LINE.findall(data, 0, _SEARCHED_BYTES)]
        if (method := next((each for each in methods if each not in _METHODS), None)) is not None:
            return _unsupported(501, f"method {method!r}", "methods are in upper case, as in POST")
    return InvalidHTTP(reason=reason)


def extra_headers(error: CodedError) -> list[tuple[bytes, bytes]]:
    """Return headers that the answer to a refused request has because of its status."""
    return [(b"accept-encoding", b"identity")] if error.facts.get("status") == 415 else []


def date() -> bytes:
    """Return the value of an answer's Date header."""
    return _date_at(int(time.time()))


@lru_cache(1)
def _date_at(now_s: int) -> bytes:
    return formatdate(now_s, usegmt=True).encode()


def _elements(found: dict[bytes, list[bytes]], name: bytes) -> list[str]:
    """Return the elements of a header that is a list, in lower case."""
    if name not in found:
        return []
    values = b",".join(found[name]).decode("latin-1").lower().split(",")
    return [each for value in values if (each := value.strip())]


def _unsupported(status: int, what: str, remedy: str) -> UnsupportedHTTP:
    return UnsupportedHTTP(status=status, what=what[:100], remedy=remedy)
