"""URLs to download from: checked, with the proxy of the environment and the credentials that they hold."""

import base64
import urllib.request
from urllib.parse import unquote

from urllib3.exceptions import LocationParseError
from urllib3.util import Url, parse_url

from engine.redact import redact_url
from errors.download import SourceUnsupported


def checked_url(url: str) -> Url:
    """Return ``url`` in parts, without its fragment. Raises SourceUnsupported if it can't be fetched."""
    try:
        url.encode()
        parts = parse_url(url)
    except (LocationParseError, UnicodeError) as exc:
        raise SourceUnsupported(source=redact_url(url), reason="it is no valid URL") from exc
    if parts.scheme not in ("http", "https") or not parts.host or not (parts.netloc or "").isprintable():
        raise SourceUnsupported(source=redact_url(url), reason="it is no http or https URL of a host")
    return parts._replace(fragment=None)


def proxy_for(url: Url) -> Url | None:
    """Return the proxy that the environment names (``https_proxy``, ``no_proxy``, ...), as curl reads it."""
    proxies = urllib.request.getproxies()
    for_all = proxies.get("all", "")  # A SOCKS proxy is ignored.
    proxy = proxies.get(url.scheme or "") or (for_all if for_all.startswith("http") else "")
    names = url.netloc or "", (url.host or "").strip("[]")  # curl has ::1 in no_proxy as well as [::1].
    if not proxy or any(map(urllib.request.proxy_bypass, names)):
        return None
    try:
        found = parse_url(proxy if "//" in proxy else f"http://{proxy}")
    except LocationParseError:
        found = Url()
    if found.scheme not in ("http", "https") or not found.host:
        reason = f"its proxy {redact_url(proxy)} is not an HTTP proxy"
        raise SourceUnsupported(source=redact_url(url.url), reason=reason)
    return found


def credentials(header: str, url: Url) -> dict[str, str]:
    """Return the header with the user and password of ``url``, if it has any."""
    if url.auth is None:
        return {}
    user, _, password = url.auth.partition(":")
    return {header: basic(unquote(user), unquote(password))}


def basic(user: str, password: str) -> str:
    # NOTE: urllib3's make_headers refuses what Latin-1 does not have.
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode()
