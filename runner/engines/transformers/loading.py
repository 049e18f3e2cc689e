"""Loading of a model by transformers, whole or not at all, onto its device and with its attention."""

import logging
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from errors.engines import EngineStartFailed
from runner.engines.transformers import attention, gpu_attention
from runner.engines.transformers.settings import ENGINE_KIND, Options

_LIBRARY_LOGGER = "ContinuousBatchingLogger"
_NEEDED_FACTS = ("vocab_size", "max_position_embeddings", "num_attention_heads")
_UNUSED = "pooler."
"""Weights for BERT's training, which published embedding models may lack."""
# Weights up to this size fit the processor's caches: splitting such small operations costs more than it
# gains, and busy-waiting threads would take time from the other processes of a small machine.
_ONE_THREAD_WEIGHT_BYTES = 32 << 20


def load_model(engine_dir: Path, options: Options) -> PreTrainedModel:
    model = read_model(AutoModelForCausalLM, engine_dir, options)
    config = model.config.get_text_config()
    absent = [name for name in _NEEDED_FACTS if getattr(config, name, None) is None]
    if absent:
        raise start_failed(f"{type(config).__name__} has no {absent[0]}, which continuous batching needs")
    model = placed(model, options)
    (attention if options.is_cpu else gpu_attention).install(model)
    return model


def read_model(kind: Any, engine_dir: Path, options: Options) -> PreTrainedModel:
    """Load the model by the library's class ``kind``."""
    transformers_logging.disable_progress_bar()
    # The library logs sizes, seeds and hints about attention at every start.
    logging.getLogger(_LIBRARY_LOGGER).setLevel(logging.WARNING)
    model, info = kind.from_pretrained(
        engine_dir,
        dtype=options.dtype or "auto",
        local_files_only=True,
        # Without this the library asks at the terminal.
        trust_remote_code=False,
        output_loading_info=True,
    )
    # NOTE: the library initializes missing weights with random numbers.
    if missing := sorted(name for name in info["missing_keys"] if not name.startswith(_UNUSED)):
        raise start_failed(f"the weights lack {', '.join(missing[:3])}")
    loaded: PreTrainedModel = model
    return loaded


def placed(model: PreTrainedModel, options: Options) -> PreTrainedModel:
    """Load the model on its device."""
    if not options.is_cpu:
        return model.to(options.device)
    if model.get_memory_footprint() <= _ONE_THREAD_WEIGHT_BYTES:
        torch.set_num_threads(1)
    return model


def start_failed(reason: str) -> EngineStartFailed:
    return EngineStartFailed(engine_kind=ENGINE_KIND, reason=reason)
