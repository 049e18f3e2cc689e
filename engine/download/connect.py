"""From a URL to a connection: its host, TLS, the environment's proxy and the URL's credentials."""

from __future__ import annotations

import base64
import http.client
import ssl
import urllib.request
from urllib.parse import SplitResult, quote, unquote, urlsplit

from engine.download.address import connect_to_public, require_public_host
from engine.redact import redact_url
from errors.download import SourceUnsupported

_PLAIN_CHARACTERS = "%/:=&?~+!$,;'@()*[]"


def split_url(url: str) -> SplitResult:
    """``url`` in parts, its path and query in ASCII; SourceUnsupported if it is none that can be fetched."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018 (it raises ValueError if it is no number)
        path = quote(parts.path or "/", safe=_PLAIN_CHARACTERS)
        query = quote(parts.query, safe=_PLAIN_CHARACTERS)
    except ValueError as exc:
        raise SourceUnsupported(source=redact_url(url), reason="it is no valid URL") from exc
    if parts.scheme not in ("http", "https") or not parts.hostname or not parts.netloc.isprintable():
        raise SourceUnsupported(source=redact_url(url), reason="it is no http or https URL of a host")
    return parts._replace(path=path, query=query, fragment="")


def proxy_for(parts: SplitResult) -> SplitResult | None:
    """The environment's proxy (``https_proxy``, ``no_proxy``, ...), as curl has it."""
    proxy = urllib.request.getproxies().get(parts.scheme)
    if not proxy or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    found = urlsplit(proxy if "//" in proxy else f"http://{proxy}")
    if found.scheme != "http" or not found.hostname:
        raise SourceUnsupported(
            source=redact_url(parts.geturl()), reason=f"its proxy {redact_url(proxy)} is not an HTTP proxy"
        )
    return found


def new_connection(
    parts: SplitResult, proxy: SplitResult | None, timeout_s: float, *, only_public: bool = False
) -> http.client.HTTPConnection:
    """Not open yet: the first request opens it. ``only_public``: see ``engine.download.address``."""
    connection = _new_connection(parts, proxy, timeout_s)
    if only_public and proxy is None:
        # NOTE: the hook that http.client has for its own tests; its sockets are made nowhere else.
        connection._create_connection = connect_to_public  # type: ignore[attr-defined]
    elif only_public and parts.hostname is not None:
        require_public_host(parts.hostname, parts.port or 443)
    return connection


def _new_connection(
    parts: SplitResult, proxy: SplitResult | None, timeout_s: float
) -> http.client.HTTPConnection:
    assert parts.hostname is not None, "split_url has seen to it"
    host, port = parts.hostname, parts.port
    if proxy is not None and proxy.hostname is not None:
        host, port = proxy.hostname, proxy.port or 80
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, port, timeout=timeout_s)
    context = ssl.create_default_context()
    connection = http.client.HTTPSConnection(host, port, timeout=timeout_s, context=context)
    if proxy is not None:
        connection.set_tunnel(parts.hostname, parts.port, credentials("Proxy-Authorization", proxy))
    return connection


def request_target(parts: SplitResult, proxy: SplitResult | None) -> str:
    """What stands after GET: the path, or all of the URL where a proxy has to read it."""
    path = parts.path + (f"?{parts.query}" if parts.query else "")
    is_for_proxy = proxy is not None and parts.scheme == "http"
    return f"http://{parts.netloc.rpartition('@')[2]}{path}" if is_for_proxy else path


def credentials(header: str, parts: SplitResult) -> dict[str, str]:
    """The header with the user and password that stand in a URL, if any."""
    if parts.username is None:
        return {}
    pair = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    return {header: "Basic " + base64.b64encode(pair.encode()).decode()}
