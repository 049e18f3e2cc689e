"""The ``vllm`` engine: vLLM's engine core, on one GPU, several GPUs, or several machines.

The engine server spawns the core, which runs the model, itself or in one process per GPU, and sends all
results of a step as one message. vLLM does not detokenize anything.
"""

import importlib
import logging
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from engine.kinds import LORA_FOLDER
from engine.pooling import read_pooling
from runner.engines.protocol.adapter import EngineAdapter, Sink
from runner.engines.protocol.messages import ALL_GUIDE_TYPES, Ready
from runner.engines.vllm.arguments import (
    ENGINE_KIND,
    guide_end_id,
    prepare_environment,
    prepare_import,
    read_arguments,
)
from runner.engines.vllm.core_process import spawn_early
from runner.engines.vllm.interface import check_vllm
from runner.engines.vllm.read_ahead import read_ahead

if TYPE_CHECKING:
    from runner.engines.guides.compile import GuideCompiler
    from runner.engines.vllm.images import Images
    from runner.engines.vllm.interface import VllmConfig

log = logging.getLogger("cog_triton.engine")
_importing: threading.Thread | None = None
"""Thread that imports vLLM, once ``prepare`` was called."""


def prepare(options: Mapping[str, str]) -> None:
    """Begin to import vLLM, here and in the process of its core."""
    global _importing
    prepare_import(options.get("engine_cache_dir"))
    spawn_early()
    _importing = threading.Thread(target=_import, name="vllm-import", daemon=True)
    _importing.start()


def _import() -> None:
    """Import in a thread: meanwhile the engine arrives, and its arguments and its tokenizer are read."""
    with suppress(Exception):  # A failure shows when the engine is loaded.
        importlib.import_module("runner.engines.vllm.client")


def load(engine_dir: Path, sink: Sink, options: Mapping[str, str]) -> EngineAdapter:
    """Start vLLM on the engine. ``options``: see ``arguments``, and ``engine_cache_dir``.

    Raises InvalidSetting, EngineStartFailed, MissingRequirement, NodesMissing, PoolingUnsupported,
    VllmMissing, VllmArgumentsRefused, VllmOrderFailed, VllmStartFailed.
    """
    pooling = read_pooling(engine_dir)
    arguments = read_arguments(engine_dir, options)
    read_ahead(engine_dir, arguments.get("load_format", "auto"))
    end_id = guide_end_id(engine_dir)
    is_serving = threading.Event()
    if "nodes" in options:
        from runner.engines.vllm.nodes import lead  # Few engines have several nodes.

        arguments |= lead(engine_dir, options, arguments, sink.broken, is_serving.is_set)
    prepare_environment(arguments, options.get("engine_cache_dir"))
    if _importing is not None:
        _importing.join()
    check_vllm(log.warning)
    from runner.engines.adapters import Adapters
    from runner.engines.vllm.client import make_config, start
    from runner.engines.vllm.engine import VllmEngine
    from runner.engines.vllm.interface import LoRARequest

    config = make_config(arguments, pooling)
    with ThreadPoolExecutor(1) as meanwhile:
        has_guides = end_id is not None and pooling is None
        opening = meanwhile.submit(_open_guides, engine_dir) if has_guides else None
        model = config.model_config
        takes_images = has_guides and model.supports_multimodal_inputs and not model.is_encoder_decoder
        preparing = meanwhile.submit(_open_images, config) if takes_images else None
        client = start(config)
        guides = None if opening is None else opening.result()
        images = None if preparing is None else preparing.result()
    folder, lora = engine_dir / LORA_FOLDER, config.lora_config
    limits = () if lora is None else (lora.max_cpu_loras or lora.max_loras, lora.max_lora_rank)
    adapters = Adapters(LoRARequest, folder, "vllm:", *limits)
    max_length = config.model_config.max_model_len
    ready = Ready(
        engine_kind=ENGINE_KIND,
        vocab_size=config.model_config.get_vocab_size(),
        max_sequence_length=max_length if pooling is None else pooling.limit(max_length),
        max_batch_size=config.scheduler_config.max_num_seqs * config.parallel_config.data_parallel_size,
        guide_types=() if guides is None else ALL_GUIDE_TYPES,
        is_embedding=pooling is not None,
        takes_priority=config.scheduler_config.policy == "priority",
        max_adapters=adapters.limit,
        can_sleep=config.model_config.enable_sleep_mode,
        kv_block_tokens=config.cache_config.block_size,
        num_kv_blocks=config.cache_config.num_gpu_blocks or 0,
        num_replicas=config.parallel_config.data_parallel_size,
        max_running_adapters=0 if lora is None else lora.max_loras,
        max_images=0 if images is None else images.limit,
    )
    has_drafts = config.speculative_config is not None
    engine = VllmEngine(client, sink, ready, adapters, guides, end_id, pooling, images, has_drafts=has_drafts)
    # NOTE: after the engine is made, which ends this process if the core dies: vLLM would wait for ever.
    for name, request in adapters.carried.items():
        # NOTE: vLLM loads one with its first request, too, which would end the core if that fails.
        with client.order(f"load the LoRA adapter {name}"):
            client.add_lora(request)
    is_serving.set()
    return engine


def _open_guides(engine_dir: Path) -> "GuideCompiler | None":
    """Open the guides in a thread, while the core loads the model."""
    from runner.engines.guides.compile import open_guides

    return open_guides(engine_dir)


def _open_images(config: "VllmConfig") -> "Images":
    """Open the model's processor of images, in a thread as well. Text-only models need not import it."""
    from runner.engines.vllm.images import Images

    return Images(config)
