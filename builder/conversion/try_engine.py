"""Run in the engine environment, on every rank: ``try_engine.py DIR VOCAB_SIZE PROMPT_TOKENS NEW_TOKENS``.

Generates a few tokens greedily and exits with 0 only if their number is right, all are in the vocabulary and
their probabilities are finite. Uses the executor bindings of TensorRT-LLM 0.16.0.
"""

import math
import sys
from datetime import timedelta
from typing import Any

TIMEOUT_S = 300.0
_KV_TOKENS = 256
"""Small size, as the KV cache takes nearly all of the GPU by default."""


def main() -> None:
    engine_dir = sys.argv[1]
    vocab_size, prompt_tokens, new_tokens = map(int, sys.argv[2:5])
    from tensorrt_llm.bindings import executor as trtllm  # type: ignore[import-not-found, unused-ignore]

    config = trtllm.ExecutorConfig(
        max_beam_width=1, kv_cache_config=trtllm.KvCacheConfig(max_tokens=_KV_TOKENS)
    )
    executor = trtllm.Executor(engine_dir, trtllm.ModelType.DECODER_ONLY, config)
    if executor.can_enqueue_requests():
        prompt = [min(token + 1, vocab_size - 1) for token in range(prompt_tokens)]
        problem = complaint(generate(executor, trtllm, prompt, new_tokens), vocab_size, new_tokens)
    else:
        problem = None  # another rank than the leader
    executor.shutdown()
    if problem is not None:
        sys.exit(problem)


def generate(executor: Any, trtllm: Any, prompt: list[int], new_tokens: int) -> Any:
    """Return the final result of one request. Exit with the engine's error if it fails."""
    request = trtllm.Request(
        prompt,
        max_tokens=new_tokens,
        sampling_config=trtllm.SamplingConfig(1, top_k=1),
        output_config=trtllm.OutputConfig(return_log_probs=True, exclude_input_from_output=True),
    )
    request_id = executor.enqueue_request(request)
    responses = executor.await_responses(request_id, timeout=timedelta(seconds=TIMEOUT_S))
    if not responses:
        sys.exit(f"no answer within {TIMEOUT_S:.0f} s")
    if responses[-1].has_error():
        sys.exit(str(responses[-1].error_msg))
    return responses[-1].result


def complaint(result: Any, vocab_size: int, new_tokens: int) -> str | None:
    """Return what is wrong with ``result``; None if it is sound."""
    tokens = result.output_token_ids[0]
    if len(tokens) != new_tokens:
        return f"{len(tokens)} tokens were generated instead of {new_tokens}"
    if not all(0 <= token < vocab_size for token in tokens):
        return f"generated {tokens}, but there are {vocab_size} tokens"
    log_probs = result.log_probs
    if log_probs is not None and not all(math.isfinite(each) for each in log_probs[0]):
        return f"generated {tokens} with the log probabilities {log_probs[0]}"
    print(f"generated {tokens}", flush=True)
    return None


if __name__ == "__main__":
    main()
