"""Requests of the same meaning to each kind of server: slot, json and sse (Cog), openai; known answers."""

import json
from collections.abc import Iterable, Sequence
from typing import Any

from tokenizers import Tokenizer

from perf.load.http import HttpClient
from perf.load.record import Answer
from perf.load.response import Response, events
from perf.load.targets.cog import CogTarget
from perf.load.targets.openai import OpenAITarget
from perf.load.targets.target import Posting, Target, Workload
from perf.load.targets.triton import TritonTarget
from perf.peers.servers import Endpoint
from perf.peers.workloads import Prompt
from perf.servers import MODEL
from runner.triton_server.model_names import SLOT


def posting(endpoint: Endpoint, prompt: Prompt, *, is_streaming: bool = True) -> Posting:
    """Make a request for as many tokens as ``prompt`` says. ``is_streaming``: for slot and OpenAI's API."""
    kind, url, tokens = endpoint.kind, endpoint.url, prompt.output_tokens
    # Known answers have no end. What keeps others from ending costs a vLLM engine time.
    is_fixed = endpoint.engine.answer(prompt.ids, 1) is None
    if kind == "slot":
        extra = {"input_ids": prompt.ids, "input_lengths": len(prompt.ids), "runtime_top_k": 1}
        workload = Workload("", 0, tokens, is_fixed, extra={**extra, "streaming": is_streaming})
        return TritonTarget(url, SLOT, workload)
    if kind == "openai":
        workload = Workload(prompt.text, 0, tokens, False, {"temperature": 0, "ignore_eos": True})
        return OpenAITarget(url, "completions", MODEL, workload, is_streaming=is_streaming)
    inputs = {"prompt": prompt.text, "max_tokens": tokens, "temperature": 0}
    if is_fixed:
        inputs["min_tokens"] = tokens
    return CogTarget(url, inputs, is_streaming=kind == "sse")


class Prompts(Target):
    """Target that gets each prompt once. An answer of another length or text than the known fails."""

    def __init__(
        self,
        endpoint: Endpoint,
        prompts: Sequence[Prompt],
        tokenizer: Tokenizer,
        *,
        is_streaming: bool = True,
    ) -> None:
        self.url = endpoint.url
        self._targets = [posting(endpoint, each, is_streaming=is_streaming) for each in prompts]
        for target in self._targets:
            assert target.request.encoded  # Takes no time from the load.
        self._indexes = iter(range(len(prompts)))
        self._index_by_response: dict[int, int] = {}
        self._lengths = [each.output_tokens for each in prompts]
        answers = [endpoint.engine.answer(each.ids, each.output_tokens) for each in prompts]
        known = [each for each in answers if each is not None]
        is_slot = endpoint.kind == "slot"
        self._known = list(map(ids_text, known)) if is_slot else tokenizer.decode_batch(known)

    async def exchange(self, http: HttpClient) -> Sequence[Response]:
        index = next(self._indexes)
        responses = await self._targets[index].exchange(http)
        self._index_by_response[id(responses[-1])] = index
        return responses

    def read(self, responses: Sequence[Response]) -> Answer:
        index = self._index_by_response[id(responses[-1])]
        answer = self._targets[index].read(responses)
        if answer.outcome == "completed":
            if answer.output_tokens != self._lengths[index]:
                answer.error = f"{answer.output_tokens} tokens instead of {self._lengths[index]}"
            elif self._known and text_of(responses[-1]) != self._known[index]:
                answer.error = "another text than the known one"
            answer.outcome = "failed" if answer.error else "completed"
        return answer


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
