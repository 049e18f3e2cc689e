"""The engine called in its own process, nothing of ours around it: what all else is measured against.

    ENGINE_PYTHON scripts/prove_gpu/in_process.py ENGINE WORKLOAD.json RESULT.json --mode llm|async

``llm`` is vLLM's ``LLM.generate`` over the whole batch; ``async`` its ``AsyncLLM`` with a stream each, which
tells when the first token came. Detokenization is off in both. Prints a JSON line per run.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("engine", type=Path)
    parser.add_argument("workload", type=Path)
    parser.add_argument("result", type=Path)
    parser.add_argument("--mode", choices=("llm", "async"), required=True)
    parser.add_argument("--cache", help="the engine's cache of compiled code")
    options = parser.parse_args()
    sys.path.insert(0, str(ROOT))
    from runner.engines.vllm_arguments import prepare_environment, read_arguments

    arguments = read_arguments(options.engine, {})
    prepare_environment(arguments, options.cache)
    arguments["disable_log_stats"] = True
    work = json.loads(options.workload.read_text())
    started_s = time.time()
    runs = _llm(arguments, work) if options.mode == "llm" else asyncio.run(_async(arguments, work))
    options.result.write_text(json.dumps({"seconds": time.time() - started_s, "runs": runs}))
    # NOTE: vLLM's own shutdown can wait for what is never sent.
    os._exit(0)


def _parameters(tokens: int, streams: bool) -> Any:
    from vllm import SamplingParams
    from vllm.sampling_params import RequestOutputKind

    kind = RequestOutputKind.DELTA if streams else RequestOutputKind.FINAL_ONLY
    return SamplingParams(
        temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False, output_kind=kind
    )


def _llm(arguments: dict[str, Any], work: dict[str, Any]) -> list[dict[str, Any]]:
    from vllm import LLM

    started_s = time.time()
    engine = LLM(**arguments)
    print(f"LLM() ready after {time.time() - started_s:.1f} s", flush=True)
    runs = []
    for load in work["loads"]:
        prompts = [{"prompt_token_ids": ids} for ids in work["prompts"][: load["streams"]]]
        started_s = time.perf_counter()
        outputs = engine.generate(prompts, _parameters(load["tokens"], False), use_tqdm=False)
        seconds = time.perf_counter() - started_s
        answers = [list(output.outputs[0].token_ids) for output in outputs]
        runs.append(_run(load, seconds, answers, [], work))
    return runs


async def _async(arguments: dict[str, Any], work: dict[str, Any]) -> list[dict[str, Any]]:
    from vllm import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))

    async def one(ids: list[int], tokens: int, key: str) -> tuple[float, list[int]]:
        started_s, first_s = time.perf_counter(), 0.0
        answer: list[int] = []
        async for output in engine.generate({"prompt_token_ids": ids}, _parameters(tokens, True), key):
            first_s = first_s or time.perf_counter() - started_s
            answer += output.outputs[0].token_ids
        return first_s, answer

    runs = []
    for number, load in enumerate(work["loads"]):
        started_s = time.perf_counter()
        streams = [
            one(ids, load["tokens"], f"{number}-{index}")
            for index, ids in enumerate(work["prompts"][: load["streams"]])
        ]
        results = await asyncio.gather(*streams)
        seconds = time.perf_counter() - started_s
        firsts, answers = [first for first, _ in results], [answer for _, answer in results]
        runs.append(_run(load, seconds, answers, firsts, work))
    return runs


def _run(
    load: dict[str, Any], seconds: float, answers: list[list[int]], firsts: list[float], work: dict[str, Any]
) -> dict[str, Any]:
    following = work["following"]
    exact = 0
    for ids, answer in zip(work["prompts"], answers, strict=False):
        token, expected = ids[-1], []
        for _ in range(load["tokens"]):
            token = following[token]
            expected.append(token)
        exact += answer == expected
    run = {
        **load,
        "tokens_per_second": sum(map(len, answers)) / seconds,
        "exact": exact,
        "first_token_ms": sorted(1000 * first for first in firsts)[len(firsts) // 2] if firsts else None,
    }
    print(json.dumps(run), flush=True)
    return run


if __name__ == "__main__":
    main()
