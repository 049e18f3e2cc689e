"""GET /: the page to try the API in a browser, and the two libraries that it uses.

The page is one file; its headers restrict it to this server. ``vendor`` holds the libraries as their authors
published them, with their licences: highlight.js for code, and Temml for formulas. Temml is a smaller
relative of KaTeX that writes MathML and needs no fonts. The page works without them.
"""

import base64
import hashlib
import re
from pathlib import Path

from starlette.responses import Response
from starlette.routing import Route

_FOLDER = Path(__file__).parent
_STYLE = re.compile(r'<link rel="stylesheet" href="(\w+\.css)">')
_SCRIPT = re.compile(r'<script src="(\w+\.js)"></script>')
_NOT_SNIFFED = {"X-Content-Type-Options": "nosniff"}


def page_routes() -> list[Route]:
    """Return the page and its libraries. The answers can be sent any number of times."""
    libraries = [
        Route(f"/vendor/{path.name}", _library(path), methods=["GET"])
        for path in sorted(_FOLDER.glob("vendor/*.js"))
    ]
    return [Route("/", _page(), methods=["GET"]), *libraries]


def _page() -> Response:
    text = (_FOLDER / "page.html").read_text(encoding="utf-8")
    text, styles = _inlined(text, _STYLE, "style")
    text, scripts = _inlined(text, _SCRIPT, "script")
    policy = (
        "default-src 'none'",
        f"script-src 'self' {scripts}",
        f"style-src {styles}",
        "connect-src 'self'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        # No policy may be created, so that text never becomes HTML or code.
        "trusted-types 'none'",
    )
    headers = {
        "Content-Security-Policy": "; ".join(policy),
        "Cache-Control": "no-cache",
        "Referrer-Policy": "no-referrer",
    }
    return Response(text, headers=headers | _NOT_SNIFFED, media_type="text/html")


def _library(path: Path) -> Response:
    headers = {"Cache-Control": "max-age=86400"} | _NOT_SNIFFED
    return Response(path.read_bytes(), headers=headers, media_type="text/javascript")


def _inlined(text: str, reference: re.Pattern[str], tag: str) -> tuple[str, str]:
    """Return the page with the files that it refers to, and their digests."""
    files = {name: (_FOLDER / name).read_text(encoding="utf-8") for name in reference.findall(text)}
    digests = (hashlib.sha256(content.encode()).digest() for content in files.values())
    hashes = " ".join(f"'sha256-{base64.b64encode(each).decode()}'" for each in digests)
    return reference.sub(lambda found: f"<{tag}>{files[found[1]]}</{tag}>", text), hashes
