"""The text of an answer by any API."""

import json
from collections.abc import Iterable
from typing import Any

from perf.load.response import Response, events


def text_of(response: Response) -> str:
    """Return the text of an answer by any API; of a stream, as far as it came."""
    if not response.headers.get("content-type", "text/event-stream").startswith("text/event-stream"):
        document = json.loads(response.body)
        return "".join(document["output"]) if "output" in document else _piece(document)
    data = (event.data for event in events(response))
    return "".join(_piece(json.loads(each)) for each in data if each != b"[DONE]")


def _piece(document: dict[str, Any]) -> str:
    """Return the text in one event of any API, or in a whole answer of OpenAI's."""
    if "output_ids" in document:
        ids = document["output_ids"]
        return ids_text(ids if isinstance(ids, list) else [ids])
    text = document.get("chunk") or document.get("text_output") or ""
    for each in document.get("choices", ()):
        text += each.get("text") or each.get("delta", {}).get("content") or ""
    return str(text)


def ids_text(ids: Iterable[int]) -> str:
    """Return token ids as text: Triton's slot sends no text."""
    return "".join(f"{each} " for each in ids)
