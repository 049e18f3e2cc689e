"""What a request's head tells before anything else is read: which request it is, and whether it generates.

Standard library only: who turns requests away reads heads, too.
"""

from __future__ import annotations

import re
import secrets

GENERATION_PATHS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}
"""What generates, with its operation's name by OpenTelemetry's conventions. Nothing else is counted."""
REQUEST_ID_HEADER = "X-Request-ID"

_VALID_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_ID_LINE = re.compile(rb"\r\nx-request-id:[ \t]*([^\r\n]*?)[ \t]*\r\n", re.IGNORECASE)
_ASKED = re.compile(rb"POST (\S+?)(?:\?\S*)? HTTP/1")


def request_id_of(given: bytes | None) -> str:
    """What the client calls its request; one of our own where it has no name that could be told again."""
    if given is not None and _VALID_ID.fullmatch(given):
        return given.decode()
    return secrets.token_hex(16)


def request_id_in(head: bytes) -> str:
    """The same of a head of HTTP/1."""
    line = _ID_LINE.search(head)
    return request_id_of(line[1] if line else None)


def is_generation(head: bytes) -> bool:
    asked = _ASKED.match(head)
    return asked is not None and asked[1].decode(errors="replace") in GENERATION_PATHS
