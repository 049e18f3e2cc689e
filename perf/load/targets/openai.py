"""OpenAI's API, streaming: /v1/completions and /v1/chat/completions of any server that speaks it."""

from __future__ import annotations

import json
from typing import Any, Literal

from perf.load.events import events
from perf.load.record import Answer
from perf.load.response import Response
from perf.load.targets.target import Posting, Workload

Api = Literal["completions", "chat"]
_PATHS: dict[str, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_DONE = b"[DONE]"


class OpenAITarget(Posting):
    """``model`` is the name the server knows it by; ``key``, if there is one, is sent as a bearer token."""

    def __init__(self, url: str, api: Api, model: str, workload: Workload, key: str | None) -> None:
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        super().__init__(url, _PATHS[api], openai_inputs(api, model, workload), headers)

    def read_ok(self, response: Response) -> Answer:
        answer = Answer()
        is_whole = False
        usage: dict[str, Any] = {}
        for event in events(response):
            if event.data == _DONE:
                is_whole = True
                break
            document = json.loads(event.data)
            if "error" in document:
                return Answer(outcome="failed", error=str(document["error"]))
            usage = document.get("usage") or usage
            if _has_text(document):
                answer.output_s.append(event.at_s)
        if not is_whole:
            return Answer(outcome="failed", error="the stream ended without [DONE]")
        answer.input_tokens = usage.get("prompt_tokens")
        answer.output_tokens = int(usage.get("completion_tokens", len(answer.output_s)))
        return answer


def openai_inputs(api: Api, model: str, workload: Workload) -> dict[str, Any]:
    """The request's body. ``min_tokens`` and ``ignore_eos`` are vLLM's, which others took over."""
    inputs: dict[str, Any] = {"model": model, "max_tokens": workload.output_tokens, "stream": True}
    inputs["stream_options"] = {"include_usage": True}
    if api == "chat":
        inputs["messages"] = [{"role": "user", "content": workload.prompt}]
    else:
        inputs["prompt"] = workload.prompt
    if workload.is_fixed_length:
        inputs |= {"min_tokens": workload.output_tokens, "ignore_eos": True}
    return {**inputs, **workload.extra}


def _has_text(document: dict[str, Any]) -> bool:
    for choice in document.get("choices") or ():
        delta = choice.get("delta") or {}
        if choice.get("text") or delta.get("content") or delta.get("reasoning_content"):
            return True
    return False
