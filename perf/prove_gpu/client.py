"""A load of streams on one server, by the load generator; each stream is compared with the known answer.

Targets: ``slot`` (Triton's generate_stream), ``json`` and ``sse`` (Cog), ``openai`` (completions, streamed).
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from perf.load.clients import run
from perf.load.plan import Plan
from perf.load.record import Answer
from perf.load.response import Response
from perf.load.summary import summarize
from perf.load.targets.cog import CogTarget
from perf.load.targets.in_order import InOrder
from perf.load.targets.openai import OpenAITarget
from perf.load.targets.target import Posting, Workload
from perf.load.targets.triton import TritonTarget
from perf.output import ids_text, text_of
from perf.prove_gpu.known_load import answer
from perf.servers import MODEL
from runner.triton_server.model_names import SLOT

_PROCESSES = 8
_TIMEOUT_S = 600.0
_TOGETHER_S = 1e-9
"""Between the beginnings of streams that begin together."""

Work = dict[str, Any]
"""A workload as known_load.py writes it."""


@dataclass
class KnownAnswer(Answer):
    """An answer to the prompt ``index``."""

    index: int = 0
    output: str = ""


class KnownTarget(InOrder):
    """Sends the workload's prompts, each to one stream."""

    def __init__(self, kind: str, url: str, work: Work, streams: int, tokens: int) -> None:
        prompts = work["texts" if kind in ("json", "sse") else "prompts"][:streams]
        super().__init__([posting(kind, url, prompt, tokens) for prompt in prompts])
        self._kind = kind

    def read_one(self, index: int, answer: Answer, response: Response) -> Answer:
        output = output_text(self._kind, response) if answer.outcome == "completed" else ""
        return KnownAnswer(**vars(answer), index=index, output=output)


def posting(
    kind: str, url: str, prompt: str | Sequence[int], tokens: int, *, is_streaming: bool = True
) -> Posting:
    """A request for ``tokens`` tokens. The slot takes token ids, Cog takes text, OpenAI's API takes both.

    ``is_streaming`` is for the slot and OpenAI's API; Cog's streams are a kind of their own.
    """
    if kind == "slot":
        extra = {
            "input_ids": prompt,
            "input_lengths": len(prompt),
            "runtime_top_k": 1,
            "streaming": is_streaming,
        }
        return TritonTarget(url, SLOT, Workload("", 0, tokens, is_fixed_length=False, extra=extra))
    if kind == "openai":
        extra = {"prompt": prompt, "temperature": 0, "ignore_eos": True}
        workload = Workload("", 0, tokens, is_fixed_length=False, extra=extra)
        return OpenAITarget(url, "completions", MODEL, workload, is_streaming=is_streaming)
    inputs = {"prompt": prompt, "max_tokens": tokens, "temperature": 0}
    return CogTarget(url, inputs, is_streaming=kind == "sse")


def output_text(kind: str, response: Response) -> str:
    """The whole text of a completed answer; of the slot, its ids."""
    return "".join(json.loads(response.body)["output"]) if kind == "json" else text_of(response)


def measure(
    kind: str, url: str, workload: Path, streams: int, tokens: int, gap_s: float = 0.0
) -> dict[str, Any]:
    """Run the load once; tokens per second over all streams from the first's start to the last byte.

    All streams begin together, or one every ``gap_s`` seconds.
    """
    work = json.loads(workload.read_text())
    between_s = gap_s or _TOGETHER_S
    plan = Plan("rps", 1 / between_s, (streams - 0.5) * between_s, timeout_s=_TIMEOUT_S)
    done = run(plan, KnownTarget(kind, url, work, streams, tokens), min(_PROCESSES, streams))
    found = summarize(done)
    streamed = [each for each in done.records if each.answer.output_s]
    firsts_ms = [1000 * (each.answer.output_s[0] - each.sent_s) for each in streamed]
    return {
        "streams": streams,
        "tokens": tokens,
        "tokens_per_second": found.tokens_per_second,
        "first_token_ms": statistics.median(firsts_ms) if firsts_ms else None,
        "first_token_max_ms": max(firsts_ms, default=None),
        "client_cpu_s": found.client_cpu_s,
        "exact": sum(_is_exact(each.answer, kind, work, tokens) for each in done.records),
        "errors": list(found.errors)[:3],
    }


def _is_exact(read: Answer, kind: str, work: Work, tokens: int) -> bool:
    if not isinstance(read, KnownAnswer):
        return False
    if kind == "slot":
        return read.output == ids_text(answer(work["prompts"][read.index], work["following"], tokens))
    return bool(read.output == work["answers"][str(tokens)][read.index])
