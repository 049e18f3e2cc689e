"""vLLM's AsyncLLM in a process of its own, with nothing of ours around it: the reference of all other speeds.

It stays, so that it can be measured in turn with servers that stay too: each line of its input is a load,
``{"streams": 256, "tokens": 512, "gap_s": 0}``, each line of its output that begins with ``{`` a result.
Arguments: the engine's folder, the workload's file, the folder of the engine's compiled code.
"""

import asyncio
import itertools
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

from perf.prove_gpu.known_load import answer
from runner.engines.vllm.arguments import prepare_environment, read_arguments


async def main(engine_dir: Path, work: dict[str, Any], cache: str) -> None:
    arguments = read_arguments(engine_dir, {})
    prepare_environment(arguments, cache)
    from vllm import AsyncEngineArgs, SamplingParams
    from vllm.sampling_params import RequestOutputKind
    from vllm.v1.engine.async_llm import AsyncLLM

    engine = AsyncLLM.from_engine_args(AsyncEngineArgs(**arguments))
    numbers = itertools.count()

    async def stream(ids: list[int], tokens: int, wait_s: float) -> tuple[list[int], float]:
        """Its tokens, and the seconds until its first one."""
        await asyncio.sleep(wait_s)
        start_s, first_s = time.perf_counter(), 0.0
        received: list[int] = []
        parameters = SamplingParams(
            temperature=0,
            max_tokens=tokens,
            ignore_eos=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA,
        )
        async for output in engine.generate({"prompt_token_ids": ids}, parameters, str(next(numbers))):
            first_s = first_s or time.perf_counter() - start_s
            received += output.outputs[0].token_ids
        return received, first_s

    print("{}", flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        load = json.loads(line)
        prompts, tokens, gap_s = work["prompts"][: load["streams"]], load["tokens"], load["gap_s"]
        start_s = time.perf_counter()
        streams = [stream(ids, tokens, gap_s * number) for number, ids in enumerate(prompts)]
        answers = await asyncio.gather(*streams)
        speed = sum(len(received) for received, _ in answers) / (time.perf_counter() - start_s)
        known = [answer(ids, work["following"], tokens) for ids in prompts]
        exact = sum(received == right for (received, _), right in zip(answers, known, strict=True))
        first_ms = 1000 * statistics.median(first_s for _, first_s in answers)
        result = {**load, "tokens_per_second": speed, "exact": exact, "first_token_ms": first_ms}
        print(json.dumps(result), flush=True)
    # NOTE: vLLM's own shutdown can wait for what is never sent.
    os._exit(0)


if __name__ == "__main__":
    asyncio.run(main(Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text()), sys.argv[3]))
