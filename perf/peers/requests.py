"""Requests of the same meaning to each kind of server, and whether their answers are the known ones.

Kinds: ``slot`` (Triton's generate_stream), ``json`` and ``sse`` (Cog), ``openai`` (completions).
"""

from collections.abc import Sequence
from dataclasses import replace

from tokenizers import Tokenizer

from perf.load.record import Answer
from perf.load.response import Response
from perf.load.targets.cog import CogTarget
from perf.load.targets.in_order import InOrder
from perf.load.targets.openai import OpenAITarget
from perf.load.targets.target import Posting, Workload
from perf.load.targets.triton import TritonTarget
from perf.output import ids_text, text_of
from perf.peers.servers import Endpoint
from perf.peers.workloads import Prompt
from perf.servers import MODEL
from runner.triton_server.model_names import SLOT


def posting(endpoint: Endpoint, prompt: Prompt, *, is_streaming: bool = True) -> Posting:
    """Make a request for exactly as many tokens as ``prompt`` says. The slot takes ids, the others text.

    ``is_streaming`` is for the slot and OpenAI's API; Cog's streams are a kind of their own.
    """
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


class Prompts(InOrder):
    """Sends each prompt once. An answer of another length, or of ours with another text, has failed."""

    def __init__(
        self,
        endpoint: Endpoint,
        prompts: Sequence[Prompt],
        tokenizer: Tokenizer,
        *,
        is_streaming: bool = True,
    ) -> None:
        super().__init__([posting(endpoint, each, is_streaming=is_streaming) for each in prompts])
        self.texts: dict[int, str] = {}
        self._prompts = prompts
        answers = [endpoint.engine.answer(each.ids, each.output_tokens) for each in prompts]
        known = [each for each in answers if each is not None]
        self._known: Sequence[str] = ()
        # NOTE: vLLM's own servers write tokens that are no text in their own way.
        if known and endpoint.metrics_url:
            is_slot = endpoint.kind == "slot"
            self._known = list(map(ids_text, known)) if is_slot else tokenizer.decode_batch(known)

    def read_one(self, index: int, answer: Answer, response: Response) -> Answer:
        if answer.outcome != "completed":
            return answer
        wanted, self.texts[index] = self._prompts[index].output_tokens, text_of(response)
        if answer.output_tokens != wanted:
            error = f"{answer.output_tokens} tokens instead of {wanted}"
            return replace(answer, outcome="failed", error=error)
        if self._known and self.texts[index] != self._known[index]:
            return replace(answer, outcome="failed", error="another text than the known one")
        return answer
