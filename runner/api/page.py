"""GET /: the page to try the API in a browser. It is one file; its headers restrict it to this server."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from pathlib import Path

from starlette.responses import Response

_PAGE = Path(__file__).with_name("page.html")
_INLINE = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


@dataclass(frozen=True)
class Page:
    content: bytes
    policy: str
    """Its Content-Security-Policy."""

    def response(self) -> Response:
        headers = {
            "Content-Security-Policy": self.policy,
            "Cache-Control": "no-cache",
            "Referrer-Policy": "no-referrer",
            "X-Content-Type-Options": "nosniff",
        }
        return Response(self.content, headers=headers, media_type="text/html")


def load_page() -> Page:
    text = _PAGE.read_text(encoding="utf-8")
    inline = {tag: _digest(content) for tag, content in _INLINE.findall(text)}
    rules = (
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
    return Page(text.encode(), "; ".join(rules))


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
