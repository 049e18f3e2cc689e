"""The ``tensorrt_llm_pytorch`` engine: TensorRT-LLM 1.x's LLM API, which runs a model's weights by PyTorch.

Written for the published interface, and tested only with a stand-in of it (``tests/standins/llm_api``). The
library starts the processes of its GPUs itself, and does not detokenize anything.

NOTE: importing ``tensorrt_llm`` initializes MPI, so only processes that serve such an engine import it.
"""

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from engine.adapters import TENSORRT_LLM_MODULES
from engine.end_ids import tokenizer_end_id
from engine.kinds import LORA_FOLDER
from runner.engines.adapters import Adapters
from runner.engines.protocol.adapter import EngineAdapter, Sink
from runner.engines.protocol.messages import GUIDE_TYPES, Ready
from runner.engines.protocol.options import KV_EVENTS_OPTION
from runner.engines.tensorrt_llm_pytorch.arguments import (
    ENGINE_KIND,
    block_tokens,
    model_sizes,
    read_arguments,
)
from runner.engines.tensorrt_llm_pytorch.interface import check_library

if TYPE_CHECKING:
    from runner.engines.guides.compile import GuideCompiler

log = logging.getLogger("cog_triton.engine")
_MAX_NUM_TOKENS = 8192
_MAX_BATCH_SIZE = 2048
_MAX_LORA_RANK = 64
"""The library's defaults."""


def load(engine_dir: Path, sink: Sink, options: Mapping[str, str]) -> EngineAdapter:
    """Load the model by the LLM API.

    Raises InvalidSetting for a bad option, MissingRequirement if the library lacks a name that is needed,
    and the library's errors.
    """
    arguments = read_arguments(engine_dir, options)
    vocab_size, max_seq_len = model_sizes(engine_dir, arguments)
    backend = arguments.get("guided_decoding_backend")
    scheduler = arguments.get("scheduler_config") or {}
    takes_priority = scheduler.get("waiting_queue_policy") == "priority"
    events = options.get(KV_EVENTS_OPTION)
    lora = arguments.get("lora_config") or {}
    targets = lora.get("lora_target_modules") or ()
    guides, guide_end_id = _open_guides(engine_dir) if backend else (None, None)
    optional = check_library(takes_priority=takes_priority, has_events=bool(events))
    from tensorrt_llm import LLM
    from tensorrt_llm.executor import LoRARequest

    from runner.engines.tensorrt_llm_pytorch.engine import LlmApiEngine
    from runner.engines.tensorrt_llm_pytorch.kv_events import KvEvents

    adapters = Adapters(
        LoRARequest,
        engine_dir / LORA_FOLDER,
        "llm_args.lora_config",
        lora.get("max_cpu_loras") or lora.get("max_loras") or 0,
        lora.get("max_lora_rank") or _MAX_LORA_RANK,
        [hf for hf, own in TENSORRT_LLM_MODULES.items() if own in targets],
    )
    kv_events = KvEvents(json.loads(events), block_tokens(arguments)) if events else None
    llm = LLM(**{**arguments, "max_seq_len": max_seq_len})
    ready = Ready(
        engine_kind=ENGINE_KIND,
        vocab_size=vocab_size,
        max_sequence_length=max_seq_len,
        max_batch_size=arguments.get("max_batch_size") or _MAX_BATCH_SIZE,
        guide_types=GUIDE_TYPES if backend else (),
        takes_priority=takes_priority,
        max_adapters=adapters.limit,
        max_running_adapters=lora.get("max_loras") or adapters.limit,
        kv_block_tokens=block_tokens(arguments),
    )
    is_chunked = bool(arguments.get("enable_chunked_prefill"))
    return LlmApiEngine(
        llm,
        sink,
        ready,
        # NOTE: the library refuses longer prompts.
        prompt_limit=max_seq_len if is_chunked else arguments.get("max_num_tokens") or _MAX_NUM_TOKENS,
        optional=optional,
        adapters=adapters,
        kv_events=kv_events,
        guides=guides,
        guide_backend=backend or "",
        guide_end_id=guide_end_id,
    )


def _open_guides(engine_dir: Path) -> "tuple[GuideCompiler | None, int | None]":
    """Return the compiler that checks guides, and the token that ends a guided output."""
    guides = None
    try:
        from runner.engines.guides.compile import open_guides

        guides = open_guides(engine_dir)
    # TensorRT-LLM 1.2 has llguidance 0.7.29, which lacks what the check needs.
    except (ImportError, TypeError) as exc:
        log.warning("guides are not checked before TensorRT-LLM gets them: %s", exc)
    return guides, tokenizer_end_id(engine_dir, Tokenizer.from_file(str(engine_dir / "tokenizer.json")))
