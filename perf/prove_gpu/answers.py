"""Sampling by seed, log probabilities, LoRA adapters by name; weights in 8 bits, made by vLLM or packed so.

The model with flat logits (``known_model.py --flat``) gives other tokens when sampling, adapter or seed
differ. Its log probabilities are compared with transformers' in float32 (reference.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from perf.prove_gpu.client import Clients
from perf.prove_gpu.known_load import write_workload
from perf.prove_gpu.proof import Proof
from perf.prove_gpu.servers import stack
from perf.prove_gpu.slot_stream import Output, generate, generate_together
from perf.servers import Stack

_TOKENS = 32
_MOST_MEAN_ERROR = 0.05
"""Of a log probability: bfloat16 against float32. An adapter left out is ten times that."""
_STREAMS = 64
_SMALL_ENGINE = {
    "dtype": "bfloat16",
    "max_model_len": 2048,
    "max_num_seqs": _STREAMS,
    "max_num_batched_tokens": 8192,
    "gpu_memory_utilization": 0.1,
    "kv_cache_memory_bytes": 1 << 30,
    # Its start is half of these checks' time.
    "enforce_eager": True,
}


def run_answers(proof: Proof) -> None:
    model = proof.work / "model-flat"
    proof.make_model(model, "--shape", "small", "--flat", "--adapters")
    adapters = {name: {"model_path": f"{model.name}/adapters/{name}"} for name in ("loud", "silent")}
    config = {"model_path": model.name, "vllm": _arguments(proof), "lora": adapters}
    with _stacks(proof, {"flat": config}) as stacks:
        url = stacks["flat"].triton_url
        text = (model / "tokenizer_config.json").read_bytes()
        prompts = [[3 + (byte * 7 + index * 31) % 900 for byte in text[:40]] for index in range(8)]
        _check_seeds(proof, url, prompts[0])
        _check_log_probs(proof, url, prompts, model)
        refused = generate(url, {**_greedy(prompts[0]), "lora_name": "unknown"}).error
    proof.facts["unknown_adapter"] = refused
    proof.expect("an adapter that the engine lacks is refused", "E1103" in refused)


def run_quantized(proof: Proof) -> None:
    model, packed = proof.work / "model-small", proof.work / "model-fp8"
    proof.make_model(model, "--shape", "small", "--fp8", str(packed))
    arguments = _arguments(proof)
    configs = {
        "online-fp8": {"model_path": model.name, "vllm": {**arguments, "quantization": "fp8"}},
        "packed-fp8": {"model_path": packed.name, "vllm": arguments},
    }
    workload = proof.work / "workload-small.json"
    write_workload(workload, model, streams=_STREAMS, lengths=(128,))
    with _stacks(proof, configs) as stacks, Clients() as clients:
        for name, each in stacks.items():
            measured = clients.measure("slot", each.triton_url, workload, _STREAMS, 128)
            proof.row({**measured, "target": f"slot, {name}"})


def _arguments(proof: Proof) -> dict[str, Any]:
    backend = proof.options.attention_backend
    return _SMALL_ENGINE | ({"attention_backend": backend} if backend else {})


@contextmanager
def _stacks(proof: Proof, configs: Mapping[str, dict[str, Any]]) -> Iterator[dict[str, Stack]]:
    """An engine of each build config, all served at once."""
    tars = {name: proof.work / f"engine-{name}.tar" for name in configs}
    for name, config in configs.items():
        proof.build(tars[name], {"engine": "vllm", **config})
    with ExitStack() as opened, ThreadPoolExecutor(len(configs)) as pool:
        started = [stack(proof, name, {"COG_WEIGHTS": str(tar)}) for name, tar in tars.items()]
        yield dict(zip(configs, pool.map(opened.enter_context, started), strict=True))


def _greedy(ids: Sequence[int]) -> dict[str, Any]:
    return {"input_ids": list(ids), "request_output_len": _TOKENS, "runtime_top_k": 1}


def _sampled(ids: Sequence[int], seed: int) -> dict[str, Any]:
    choice = {"runtime_top_k": 50, "runtime_top_p": 0.9, "temperature": 0.8, "random_seed": seed}
    return {**_greedy(ids), **choice}


def _check_seeds(proof: Proof, url: str, ids: Sequence[int]) -> None:
    alone = [generate(url, _sampled(ids, seed)).tokens for seed in (11, 11, 12)]
    proof.expect("a seed gives the same tokens again", alone[0] == alone[1] and len(alone[0]) == _TOKENS)
    proof.expect("another seed gives others", alone[0] != alone[2])
    together = [
        each.tokens for each in generate_together(url, [_sampled(ids, 20 + n // 2) for n in range(32)])
    ]
    pairs = list(zip(together[::2], together[1::2], strict=True))
    same = sum(first == second for first, second in pairs)
    proof.facts["equal_pairs_in_a_batch"] = [same, len(pairs)]
    proof.say(f"32 sampled together: {same} of {len(pairs)} pairs with the same seed are equal")
    distinct = len({tuple(tokens) for tokens, _ in pairs})
    proof.expect("seeds differ within a batch", distinct == len(pairs))


def _check_log_probs(proof: Proof, url: str, prompts: Sequence[Sequence[int]], model: Path) -> None:
    """Of the model alone and with each adapter, all in one batch."""
    names = ("", "loud", "silent")
    requests = [
        {**_greedy(ids), "return_log_probs": True, **({"lora_name": name} if name else {})}
        for ids in prompts
        for name in names
    ]
    outputs = generate_together(url, requests)
    said: dict[str, list[Output]] = {name: outputs[index :: len(names)] for index, name in enumerate(names)}
    for name, mine in said.items():
        path = proof.work / f"said-{name or 'alone'}.json"
        path.write_text(
            json.dumps([[list(ids), each.tokens] for ids, each in zip(prompts, mine, strict=True)])
        )
        adapter = ("--adapter", str(model / "adapters" / name)) if name else ()
        found = proof.run_program("reference", model, path, *adapter)
        pairs = [
            (ours, theirs)
            for each, values in zip(mine, found["log_probs"], strict=True)
            for ours, theirs in zip(each.log_probs, values, strict=True)
        ]
        mean = sum(abs(ours - theirs) for ours, theirs in pairs) / max(1, len(pairs))
        label = f"with adapter {name}" if name else "alone"
        proof.facts[f"log_probs_{name or 'alone'}"] = {
            "mean_error": mean,
            "most_probable": found["most_probable"],
        }
        hits = found["most_probable"]
        proof.say(f"log probs {label}: mean error {mean:.4f}; {hits:.3f} of tokens the most probable")
        complete = len(pairs) == len(prompts) * _TOKENS
        proof.expect(f"log probs {label} are transformers'", complete and mean < _MOST_MEAN_ERROR)
    changed = sum(one.tokens != other.tokens for one, other in zip(said[""], said["loud"], strict=True))
    proof.expect("an adapter changes what is said", changed == len(prompts))
