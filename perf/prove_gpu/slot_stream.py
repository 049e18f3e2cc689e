"""One request to the engine slot, by Triton's ``generate_stream``, and its answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import urllib3

Request = dict[str, Any]
"""The slot's tensors by name."""


@dataclass
class Output:
    """Tokens, their log probabilities where the request has them, and the error that ended it."""

    tokens: list[int] = field(default_factory=list)
    log_probs: list[float] = field(default_factory=list)
    error: str = ""


def generate(url: str, request: Request) -> Output:
    path = f"{url}/v2/models/tensorrt_llm/generate_stream"
    response = urllib3.request("POST", path, json={"streaming": True, **request}, timeout=120, retries=False)
    output = Output()
    for line in response.data.splitlines():
        if line.startswith(b"data:"):
            event = json.loads(line[5:])
            output.error = str(event.get("error", ""))
            output.tokens += _listed(event.get("output_ids", []))
            output.log_probs += _listed(event.get("output_log_probs", []))
    return output


def generate_together(url: str, requests: Sequence[Request]) -> list[Output]:
    with ThreadPoolExecutor(len(requests)) as pool:
        return list(pool.map(lambda request: generate(url, request), requests))


def _listed(value: Any) -> list[Any]:
    """Triton writes an array of one element as that element."""
    return value if isinstance(value, list) else [value]
