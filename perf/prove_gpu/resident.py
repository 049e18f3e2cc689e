"""The engine called in its own process, nothing of ours around it: what all else is measured against.

    ENGINE_PYTHON perf/prove_gpu/resident.py ENGINE WORKLOAD.json --mode llm|async

It stays, so that it can be measured in turn with servers that stay too: each line of its input is a load,
``{"streams": 256, "tokens": 512, "gap_s": 0}``, each line of its output that begins with ``{`` a result.
``llm`` is vLLM's ``LLM.generate`` over the whole batch; ``async`` its ``AsyncLLM`` with a stream each, which
tells when the first token came. Detokenization is off in both.
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

ROOT = Path(__file__).resolve().parents[2]

Answers = tuple[list[list[int]], list[float]]
"""Each stream's tokens, and when its first one came (seconds); no times from ``LLM``."""
Generate = Callable[[list[list[int]], int, float], Answers]
"""Prompts, tokens a stream, seconds between two streams' beginnings."""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine", type=Path)
    parser.add_argument("workload", type=Path)
    parser.add_argument("--mode", choices=("llm", "async"), required=True)
    parser.add_argument("--cache", help="the engine's cache of compiled code")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from runner.engines.vllm.arguments import prepare_environment, read_arguments

    arguments = read_arguments(options.engine, {})
    prepare_environment(arguments, options.cache)
    work = json.loads(options.workload.read_text())
    started_s = time.monotonic()
    generate = (_llm if options.mode == "llm" else _async)(arguments)
    print(json.dumps({"ready_s": time.monotonic() - started_s}), flush=True)
    for line in sys.stdin:
        load = json.loads(line)
        started_s = time.perf_counter()
        answers, firsts_s = generate(work["prompts"][: load["streams"]], load["tokens"], load["gap_s"])
        seconds = time.perf_counter() - started_s
        print(json.dumps(_row(load, seconds, answers, firsts_s, work)), flush=True)
    # NOTE: vLLM's own shutdown can wait for what is never sent.
    os._exit(0)


def _parameters(tokens: int, streams: bool) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    kind = RequestOutputKind.DELTA if streams else RequestOutputKind.FINAL_ONLY
    return SamplingParams(
        temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, output_kind=kind
    )


def _llm(arguments: dict[str, Any]) -> Generate:
    from vllm import LLM

    engine = LLM(**arguments)

    def generate(prompts: list[list[int]], tokens: int, gap_s: float) -> Answers:
        """All at once: a batch has no gaps."""
        asked = [{"prompt_token_ids": ids} for ids in prompts]
        outputs = engine.generate(asked, _parameters(tokens, False), use_tqdm=False)
        return [list(output.outputs[0].token_ids) for output in outputs], []

    return generate


def _async(arguments: dict[str, Any]) -> Generate:
    from vllm import AsyncEngineArgs
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
        async for output in engine.generate({"prompt_token_ids": ids}, _parameters(tokens, True), key):
            first_s = first_s or time.perf_counter() - started_s
            answer += output.outputs[0].token_ids
        return answer, first_s

    async def together(prompts: list[list[int]], tokens: int, gap_s: float) -> list[tuple[list[int], float]]:
        waits_s = [gap_s * number for number in range(len(prompts))]
        return await asyncio.gather(
            *(one(ids, tokens, wait_s) for ids, wait_s in zip(prompts, waits_s, strict=True))
        )

    def generate(prompts: list[list[int]], tokens: int, gap_s: float) -> Answers:
        results = loop.run_until_complete(together(prompts, tokens, gap_s))
        return [answer for answer, _ in results], [first_s for _, first_s in results]

    return generate


def _row(
    load: dict[str, Any],
    seconds: float,
    answers: list[list[int]],
    firsts_s: list[float],
    work: dict[str, Any],
) -> dict[str, Any]:
    following = work["following"]
    exact = 0
    for ids, answer in zip(work["prompts"], answers, strict=False):
        token, expected = ids[-1], []
        for _ in range(load["tokens"]):
            token = following[token]
            expected.append(token)
        exact += answer == expected
    return {
        **load,
        "tokens_per_second": sum(map(len, answers)) / seconds,
        "exact": exact,
        "first_token_ms": 1000 * statistics.median(firsts_s) if firsts_s else None,
    }


if __name__ == "__main__":
    main()
