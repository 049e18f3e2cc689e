"""Requests whose clients disconnect: the engine's own counters must fall to 0."""

import json
import time
from collections.abc import Sequence

import urllib3

from perf.metrics import metrics
from perf.prove_gpu.proof import Proof
from perf.prove_gpu.servers import stack
from perf.servers import Stack

_CLIENTS = 32
_OUTPUT_TOKENS = 1900
_FREED_TIMEOUT_S = 20.0
USED = "cog_triton_engine_cache_used_ratio"
CANCELLED = "cog_triton_slot_ended_requests_total reason=cancelled"


def run_cancel(proof: Proof) -> None:
    prompts = json.loads(proof.workload.read_text())["prompts"][:_CLIENTS]
    with stack(proof, "cancel") as started:
        held = disconnect(started, prompts, _OUTPUT_TOKENS)[USED]
        start_s = time.monotonic()
        while (after := metrics(started.metrics_url)).get(USED, 1.0) > 0:
            if time.monotonic() - start_s > _FREED_TIMEOUT_S:
                break
            time.sleep(0.2)
        after_s = time.monotonic() - start_s
    proof.facts["cancel"] = {"clients": len(prompts), "held": held, "after_s": after_s}
    proof.say(f"{len(prompts)} clients disconnected: {held:.1%} of the cache, freed after {after_s:.1f} s")
    proof.expect("cancellation frees every KV block", after[USED] == 0 < held)
    proof.expect("cancelled requests are counted", after.get(CANCELLED, 0.0) == len(prompts))


def disconnect(stack: Stack, prompts: Sequence[Sequence[int]], tokens: int) -> dict[str, float]:
    """Open streams, wait until they run, close the connections. Returns the metrics from before that."""
    url = f"{stack.triton_url}/v2/models/tensorrt_llm/generate_stream"
    responses = []
    for ids in prompts:
        body = {"input_ids": ids, "request_output_len": tokens, "runtime_top_k": 1, "streaming": True}
        responses.append(urllib3.request("POST", url, json=body, preload_content=False, retries=False))
        responses[-1].read1()  # Its first token.
    time.sleep(1.2)  # The worker sends its statistics once a second.
    running = metrics(stack.metrics_url)
    for response in responses:
        response.close()
    return running
