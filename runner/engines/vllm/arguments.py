"""vLLM's arguments and environment, from ``engine_args.json`` and the engine's options.

``engine_args.json`` holds arguments of vLLM's ``AsyncEngineArgs``, checked by the builder. The options
(server configuration) override them, so that one engine.tar fits machines of different size.
"""

import hashlib
import importlib.util
import json
import os
from collections.abc import Mapping
from functools import cache, partial
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engine.end_ids import tokenizer_end_id
from engine.kinds import ENGINE_ARGS_NAME
from errors.settings import InvalidSetting
from runner.engines.protocol.options import (
    KV_EVENTS_OPTION,
    Parser,
    fraction,
    integer,
    one_of,
    parse_options,
    read_object,
)

ENGINE_KIND = "vllm"
_PARSERS: dict[str, Parser] = {
    "max_batch_size": integer(1),
    "dtype": one_of({name: name for name in ("auto", "float16", "bfloat16", "float32")}),
    "gpu_memory_utilization": partial(fraction, is_above_zero=True),
    "tensor_parallel_size": integer(1),
    "scheduling_policy": one_of({name: name for name in ("fcfs", "priority")}),
    KV_EVENTS_OPTION: json.loads,
}


def read_arguments(engine_dir: Path, options: Mapping[str, str]) -> dict[str, Any]:
    """Return keyword arguments for ``AsyncEngineArgs``. Raises EngineStartFailed and InvalidSetting."""
    arguments = read_object(engine_dir / ENGINE_ARGS_NAME, ENGINE_KIND)
    parsed = parse_options(options, _PARSERS)
    endpoint = parsed.get(KV_EVENTS_OPTION, {}).get("endpoint", "")
    if arguments.get("data_parallel_size", 1) > 1 and endpoint.startswith("ipc:"):
        # vLLM adds the number of the replica to the port.
        raise InvalidSetting(
            name="KV_EVENTS", expected="tcp://*:PORT with data_parallel_size", value=endpoint
        )
    if "max_batch_size" in parsed:
        parsed["max_num_seqs"] = parsed.pop("max_batch_size")
    return {
        # The runner sends each image to the core: no image is kept there for a request without its data.
        "mm_processor_cache_gb": 0,
        **arguments,
        **parsed,
        "model": str(engine_dir),
        # Requests and outputs are token ids; vLLM needs the tokenizer only for guides.
        "skip_tokenizer_init": guide_end_id(engine_dir) is None,
        # The model's own sampling defaults would mix with the request's.
        "generation_config": "vllm",
        # ``vllm.scheduler`` sends what the metrics need.
        "disable_log_stats": True,
    }


def prepare_environment(arguments: Mapping[str, Any], cache_dir: str | None) -> None:
    """Set the variables that vLLM reads, unless the operator has set them."""
    prepare_import(cache_dir)
    if arguments.get("nnodes", 1) <= 1 and arguments.get("distributed_executor_backend") != "ray":
        # NOTE: several machines need an address that others reach, which vLLM finds by a public one. With a
        # plan on one of them alone, its ranks would not measure, and the others would wait for them.
        os.environ.setdefault("VLLM_HOST_IP", "127.0.0.1")
        if cache_dir and arguments.get("gpu_memory_utilization") is None:
            # The measured free memory is kept in VLLM_CACHE_ROOT for later starts.
            # NOTE: vLLM would use it for any gpu_memory_utilization.
            os.environ.setdefault("VLLM_ENABLE_STARTUP_PLAN", "1")


def prepare_import(cache_dir: str | None) -> None:
    """Set variables that vLLM reads when it is imported. None of them depends on the engine's files."""
    values = {
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # An engine is complete: nothing is downloaded.
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # This is what `vllm serve` sets. NOTE: a forked core launches a step's kernels a fifth more slowly.
        "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
        # NOTE: vLLM's default imports flashinfer even if it is not installed.
        "VLLM_USE_FLASHINFER_SAMPLER": "1" if importlib.util.find_spec("flashinfer") else "0",
    }
    if cache_dir:
        compiled = _compiled_folder(Path(cache_dir).absolute())
        values |= {"VLLM_CACHE_ROOT": f"{compiled}/vllm", "TRITON_CACHE_DIR": f"{compiled}/triton"}
    for name, value in values.items():
        os.environ.setdefault(name, value)


def _compiled_folder(cache_dir: Path) -> Path:
    """Return the folder for compiled code of a cache at this path.

    NOTE: vLLM's graphs and Triton's kernels hold the paths of their files. vLLM does not start with graphs
    that were moved (vllm-project/vllm#52154), so a cache at another path begins anew.
    """
    return cache_dir / hashlib.sha256(str(cache_dir).encode()).hexdigest()[:8]


@cache
def guide_end_id(engine_dir: Path) -> int | None:
    """Return the token that ends a guided output in vLLM: the tokenizer's own. None: no guides."""
    if not (engine_dir / "tokenizer.json").is_file():
        return None
    return tokenizer_end_id(engine_dir, Tokenizer.from_file(str(engine_dir / "tokenizer.json")))
