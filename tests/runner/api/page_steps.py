"""What a person does on the page, and when it is done."""

import json
from typing import Any

import pytest

from tests.runner.api.browser import CHROMIUM, Page

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium (Debian: apt-get install chromium; CI installs it)"
)
IS_READY = "api && document.querySelector('#parameters input') && $('state').className === 'ready'"
IS_DONE = "!running && /^(Done|Stopped at)/.test($('status').textContent)"
OPEN_GROUPS = "for (const group of $('more').children) group.open = true"


def answer_by(page: Page, *events: str) -> None:
    text = "".join(f"data: {event}\n\n" for event in events)
    page.run(f"window.fetch = async () => new Response({json.dumps(text)}), 0")


def answer_with(page: Page, *deltas: dict[str, Any], reason: str | None = "stop") -> None:
    """Replace the page's next streams by these: the paced engine can't write them."""
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": reason})
    answer_by(page, *(json.dumps({"choices": [choice]}) for choice in choices), "[DONE]")


def ask(page: Page, text: str) -> None:
    page.run("$('status').textContent = '', $('prompt').focus()")
    page.type(text)
    page.press("Enter")
    page.wait(IS_DONE)
