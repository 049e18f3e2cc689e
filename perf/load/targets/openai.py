"""OpenAI's API: /v1/completions and /v1/chat/completions of any server that has them."""

import json
from typing import Any, Literal

from perf.load.record import Answer
from perf.load.response import Response, events
from perf.load.targets.target import Posting, Workload

Api = Literal["completions", "chat"]
_PATHS: dict[str, str] = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}
_DONE = b"[DONE]"


class OpenAITarget(Posting):
    """``model`` is the name the server knows it by; ``key``, if there is one, is sent as a bearer token."""

    def __init__(
        self,
        url: str,
        api: Api,
        model: str,
        workload: Workload,
        key: str | None = None,
        *,
        is_streaming: bool = True,
    ) -> None:
        self._is_streaming = is_streaming
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        super().__init__(url, _PATHS[api], _inputs(api, model, workload, is_streaming), headers)

    def read_ok(self, response: Response) -> Answer:
        if not self._is_streaming:
            usage = json.loads(response.body)["usage"]
            return Answer(input_tokens=usage["prompt_tokens"], output_tokens=usage["completion_tokens"])
        answer = Answer()
        is_whole = False
        usage = {}
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


def _inputs(api: Api, model: str, workload: Workload, is_streaming: bool) -> dict[str, Any]:
    """Return the request's body. ``min_tokens`` and ``ignore_eos`` are vLLM's, which others took over."""
    inputs: dict[str, Any] = {"model": model, "max_tokens": workload.output_tokens}
    if is_streaming:
        inputs |= {"stream": True, "stream_options": {"include_usage": True}}
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
