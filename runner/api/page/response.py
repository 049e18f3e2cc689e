"""GET /: the page to try the API in a browser. It is one file; its headers restrict it to this server."""

import base64
import hashlib
import re
from pathlib import Path

from starlette.responses import Response

_FOLDER = Path(__file__).parent
_STYLE = re.compile(r'<link rel="stylesheet" href="(\w+\.css)">')
_SCRIPT = re.compile(r'<script src="(\w+\.js)"></script>')


def page_response() -> Response:
    """The answer, which can be sent any number of times."""
    text = (_FOLDER / "page.html").read_text(encoding="utf-8")
    text, styles = _inlined(text, _STYLE, "style")
    text, scripts = _inlined(text, _SCRIPT, "script")
    policy = (
        "default-src 'none'",
        f"script-src {scripts}",
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
        "X-Content-Type-Options": "nosniff",
    }
    return Response(text, headers=headers, media_type="text/html")


def _inlined(text: str, reference: re.Pattern[str], tag: str) -> tuple[str, str]:
    """The page with the files that it refers to, and their digests."""
    files = {name: (_FOLDER / name).read_text(encoding="utf-8") for name in reference.findall(text)}
    digests = (hashlib.sha256(content.encode()).digest() for content in files.values())
    hashes = " ".join(f"'sha256-{base64.b64encode(each).decode()}'" for each in digests)
    return reference.sub(lambda found: f"<{tag}>{files[found[1]]}</{tag}>", text), hashes
