"""What a refusal of hostile input has to look like."""

import re

from errors.coded_error import CodedError

_MOST_CHARACTERS = 20_000
"""Longest message that may quote what was sent."""


def check_refusal(error: CodedError, codes: str) -> None:
    """One sentence with a code that matches ``codes``, fit for a log and a response."""
    text = str(error)
    assert re.match(codes, error.code), text
    assert "Traceback" not in text
    assert len(text) < _MOST_CHARACTERS
    assert "\n" not in text.strip()
    text.encode()
