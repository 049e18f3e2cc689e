"""GET /: the page to try the API in a browser. It is one file; its headers restrict it to this server."""

from __future__ import annotations

import base64
import hashlib
import re
from pathlib import Path

from starlette.responses import Response

_PAGE = Path(__file__).with_name("page.html")
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


def page_response() -> Response:
    """The answer, which can be sent any number of times."""
    text = _PAGE.read_text(encoding="utf-8")
    inline = {tag: _digest(content) for tag, content in _INLINE.findall(text)}
    policy = (
        "default-src 'none'",
        f"script-src {inline['script']}",
        f"style-src {inline['style']}",
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


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
