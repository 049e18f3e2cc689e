"""vLLM's AsyncLLM in a process of its own, with nothing of ours around it: the reference of all other speeds.

It stays, so that it can be measured in turn with servers that stay too: each line of its input is a load,
``{"streams": 256, "tokens": 512, "gap_s": 0}``, each line of its output that begins with ``{`` a result.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from perf.prove_gpu.known_load import answer
from runner.engines.vllm.arguments import prepare_environment, read_arguments

Answers = list[tuple[list[int], float]]
"""Each stream's tokens, and when its first one came (seconds)."""
Generate = Callable[[list[list[int]], int, float], Answers]
"""Prompts, tokens a stream, seconds between two streams' beginnings."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", type=Path)
    parser.add_argument("workload", type=Path)
    parser.add_argument("--cache", help="the engine's cache of compiled code")
    options = parser.parse_args()
    arguments = read_arguments(options.engine, {})
    prepare_environment(arguments, options.cache)
    work = json.loads(options.workload.read_text())
    started_s = time.monotonic()
    generate = _generator(arguments)
    print(json.dumps({"ready_s": time.monotonic() - started_s}), flush=True)
    for line in sys.stdin:
        load = json.loads(line)
        started_s = time.perf_counter()
        answers = generate(work["prompts"][: load["streams"]], load["tokens"], load["gap_s"])
        print(json.dumps(_row(load, time.perf_counter() - started_s, answers, work)), flush=True)
    # NOTE: vLLM's own shutdown can wait for what is never sent.
    os._exit(0)


def _generator(arguments: dict[str, Any]) -> Generate:
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    loop = asyncio.new_event_loop()
    numbers = itertools.count()

    async def start() -> Any:
        return AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))

    engine = loop.run_until_complete(start())

    async def one(ids: list[int], tokens: int, wait_s: float) -> tuple[list[int], float]:
        await asyncio.sleep(wait_s)
        started_s, first_s = time.perf_counter(), 0.0
        answer: list[int] = []
        key = str(next(numbers))
        parameters = SamplingParams(
            temperature=0,
            max_tokens=tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        async for output in engine.generate({"prompt_token_ids": ids}, parameters, key):
            first_s = first_s or time.perf_counter() - started_s
            answer += output.outputs[0].token_ids
        return answer, first_s

    async def together(prompts: list[list[int]], tokens: int, gap_s: float) -> Answers:
        return await asyncio.gather(*(one(ids, tokens, gap_s * number) for number, ids in enumerate(prompts)))

    def generate(prompts: list[list[int]], tokens: int, gap_s: float) -> Answers:
        return loop.run_until_complete(together(prompts, tokens, gap_s))

    return generate


def _row(load: dict[str, Any], seconds: float, answers: Answers, work: dict[str, Any]) -> dict[str, Any]:
    pairs = zip(work["prompts"], answers, strict=False)
    return {
        **load,
        "tokens_per_second": sum(len(tokens) for tokens, _ in answers) / seconds,
        "exact": sum(tokens == answer(ids, work["following"], load["tokens"]) for ids, (tokens, _) in pairs),
        "first_token_ms": 1000 * statistics.median(first_s for _, first_s in answers),
    }


if __name__ == "__main__":
    main()
