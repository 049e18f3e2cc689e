"""One request to the engine slot, by Triton's ``generate_stream``, and what came of it."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

Request = dict[str, Any]
"""The slot's tensors by name."""


@dataclass
class Output:
    """Tokens, their log probabilities where they were asked for, and the error that ended it."""

    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    error: str = ""


def ask(url: str, request: Request) -> Output:
    body = {"streaming": True, **request}
    asked = urllib.request.Request(  # noqa: S310
        f"{url}/v2/models/tensorrt_llm/generate_stream",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    output = Output()
    with _opened(asked) as response:
        for line in response:
            if not line.startswith(b"data:"):
                continue
            event = json.loads(line[5:])
            if "error" in event:
                output.error = str(event["error"])
                break
            output.tokens += _listed(event.get("output_ids", []))
            output.log_probs += _listed(event.get("output_log_probs", []))
    return output


def _opened(asked: urllib.request.Request) -> Any:
    """The response, also where its status tells of an error."""
    try:
        return urllib.request.urlopen(asked, timeout=120)  # noqa: S310
    except urllib.error.HTTPError as exc:
        return exc


def ask_together(url: str, requests: Sequence[Request]) -> list[Output]:
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda request: ask(url, request), requests))


def _listed(value: Any) -> list[Any]:
    """Triton writes an array of one element as that element."""
    return value if isinstance(value, list) else [value]
