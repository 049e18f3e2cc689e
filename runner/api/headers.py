"""Whether a request generates text, as its head tells before the body is read."""

from __future__ import annotations

import re

GENERATION_PATHS = {"/v1/chat/completions": "chat", "/v1/completions": "text_completion"}
"""What generates, with its operation's name by OpenTelemetry's conventions. Nothing else is counted."""

_ASKED = re.compile(rb"POST (\S+?)(?:\?\S*)? HTTP/1")


def is_generation(head: bytes) -> bool:
    asked = _ASKED.match(head)
    return asked is not None and asked[1].decode(errors="replace") in GENERATION_PATHS
