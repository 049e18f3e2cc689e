"""Requests to Cog and to the OpenAI-compatible API of a stack, and the text of their answers."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import aiohttp

from perf.servers import MODEL, Stack

COG, OPENAI = "cog", "openai"
PATHS = {COG: "/predictions", OPENAI: "/v1/completions"}
REFUSED = {COG: 409, OPENAI: 429}
"""The status where there is no room."""


@dataclass(frozen=True)
class Call:
    """What is sent to one of the two."""

    api: str
    body: dict[str, Any]
    headers: dict[str, str]

    def url(self, stack: Stack) -> str:
        return f"{stack.cog_url if self.api == COG else stack.openai_url}{PATHS[self.api]}"


def call(api: str, prompt: str, tokens: int, *, is_stream: bool = False, **more: object) -> Call:
    inputs = {"prompt": prompt, "max_tokens": tokens, **more}
    if api == OPENAI:
        return Call(api, {"model": MODEL, **inputs, "stream": is_stream}, {})
    return Call(api, {"input": inputs}, {"Accept": "text/event-stream"} if is_stream else {})


async def text_of(response: aiohttp.ClientResponse, enough: int | None = None) -> str:
    """The text of an answer; of a stream until it is longer than ``enough``. Raises ValueError."""
    if not response.ok:
        raise ValueError(f"{response.status}: {await response.text()}")
    if not response.content_type.startswith("text/event-stream"):
        document = await response.json()
        return str(document["choices"][0]["text"]) if "choices" in document else "".join(document["output"])
    text = ""
    event = ""
    async for raw in response.content:
        line = raw.decode().rstrip("\r\n")
        if line.startswith("event:"):
            event = line[6:].strip()
        elif line.startswith("data:") and line[5:].strip() != "[DONE]":
            text += _piece(event, json.loads(line[5:]))
            if enough is not None and len(text) > enough:
                response.close()
                break
    return text


def _piece(event: str, data: Any) -> str:
    if data.get("error"):
        raise ValueError(f"an error in the stream: {data['error']}")
    if "choices" in data:
        return "".join(choice.get("text") or "" for choice in data["choices"])
    return str(data["chunk"]) if event == "output" else ""
