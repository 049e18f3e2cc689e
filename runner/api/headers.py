"""Which paths generate text, and whether the headers of a request ask for one of them."""

from __future__ import annotations

import re

GENERATION_PATHS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}
"""With the name of the operation by OpenTelemetry's conventions. Requests for other paths are not counted."""

_REQUEST_LINE = re.compile(rb"POST (\S+?)(?:\?\S*)? HTTP/1")


def is_generation(head: bytes) -> bool:
    match = _REQUEST_LINE.match(head)
    return match is not None and match[1].decode(errors="replace") in GENERATION_PATHS
