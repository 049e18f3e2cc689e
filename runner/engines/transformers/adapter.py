"""The ``transformers`` engine: continuous batching of Hugging Face's transformers, on CPU or GPU.

It is the default without a GPU, and the reference for the other engines. The model is any causal language
model that the library can batch, or an embedding model (``embedding``); its weights are in the engine
directory as the library saves them.
"""

import logging
import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from transformers import AutoModel, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from engine.pooling import Pooling, read_pooling
from errors.coded_error import CodedError
from errors.engines import EngineStartFailed
from runner.engines.guides.compile import GuideCompiler, open_guides
from runner.engines.guides.follow import Follower
from runner.engines.protocol.adapter import EngineAdapter, Sink
from runner.engines.protocol.messages import ALL_GUIDE_TYPES, Ready, Statistics, Submit
from runner.engines.transformers import attention, gpu_attention
from runner.engines.transformers.batching import ENGINE_KIND, LIBRARY_LOGGER, Batching
from runner.engines.transformers.embedding import EmbeddingEngine
from runner.engines.transformers.sequence import Sequence
from runner.engines.transformers.settings import Options, batching_config

_CLOSE_TIMEOUT_S = 30.0
_NEEDED_FACTS = ("vocab_size", "max_position_embeddings", "num_attention_heads")
_UNUSED = "pooler."
"""Weights for BERT's training, which published embedding models may lack."""
# Weights up to this size fit the processor's caches: splitting such small operations costs more than it
# gains, and busy-waiting threads would take time from the other processes of a small machine.
_ONE_THREAD_WEIGHT_BYTES = 32 << 20


class TransformersEngine:
    """A loaded model and its batch. See ``runner.engines.protocol.adapter.EngineAdapter``."""

    def __init__(self, batching: Batching, sink: Sink, ready: Ready, guides: GuideCompiler | None) -> None:
        self._batching = batching
        self._sink = sink
        self.ready = ready
        self._guides = guides
        self._compiling: set[int] = set()
        """Requests whose guide is being compiled."""
        self._lock = threading.Lock()

    def submit(self, request: Submit) -> None:
        if request.guide is None:
            self._batching.submit(Sequence(request))
        else:
            assert self._guides is not None, "the engine server rejects guides that Ready does not list"
            self._compiling.add(request.request_id)
            is_wanted = partial(self._compiling.__contains__, request.request_id)
            self._guides.submit(request.guide, partial(self._submit_guided, request), is_wanted)

    def _submit_guided(self, request: Submit, answer: Follower | CodedError | None) -> None:
        """Called when the request's guide is compiled, or is invalid."""
        with self._lock:
            is_wanted = request.request_id in self._compiling
            self._compiling.discard(request.request_id)
            if is_wanted and isinstance(answer, Follower):
                self._batching.submit(Sequence(request, answer))
        if not is_wanted:
            self._sink.finished(request.request_id, "cancelled")
        elif isinstance(answer, CodedError):
            self._sink.failed(request.request_id, answer)

    def cancel(self, request_id: int) -> None:
        with self._lock:
            if request_id in self._compiling:
                self._compiling.discard(request_id)
                return
        self._batching.cancel(request_id)

    def statistics(self) -> Statistics:
        active, queued = self._batching.counts()
        queued += len(self._compiling)
        return Statistics(active=active, queued=queued, cache_used=self._batching.cache_used())

    def close(self) -> None:
        """NOTE: the loop's thread is not a daemon: the process does not exit without this."""
        self._batching.close(_CLOSE_TIMEOUT_S)


def load(engine_dir: Path, sink: Sink, options: Mapping[str, str]) -> EngineAdapter:
    """Load the model and start its loop. ``options``: see ``Options``.

    Raises ``InvalidSetting`` for a bad option, ``EngineStartFailed``, ``PoolingUnsupported``, and the
    library's errors.
    """
    parsed = Options.parse(options)
    if not (engine_dir / "config.json").is_file():
        raise _start_failed(f"{engine_dir} has no config.json")
    if (pooling := read_pooling(engine_dir)) is not None:
        return _load_embedding(engine_dir, sink, parsed, pooling)
    # NOTE: load in a thread that ends before the loop begins. Each computing thread has its own OpenMP
    # workers. If there are more workers than cores, OpenMP puts them to sleep at each step: on two cores a
    # step took 5.1 ms instead of 2.2 ms. The workers of this thread end with it.
    with ThreadPoolExecutor(max_workers=2, thread_name_prefix="load") as loader:
        loading = loader.submit(_load, engine_dir, sink, parsed)
        guides = loader.submit(open_guides, engine_dir).result()
        batching, ready = loading.result()
    if guides is not None:
        ready = msgspec.structs.replace(ready, guide_types=ALL_GUIDE_TYPES)
    batching.start()
    return TransformersEngine(batching, sink, ready, guides)


def _load(engine_dir: Path, sink: Sink, options: Options) -> tuple[Batching, Ready]:
    model = _load_model(engine_dir, options)
    config = model.config.get_text_config()
    batching = Batching(model, batching_config(options, config, model.dtype), sink)
    ready = Ready(
        engine_kind=ENGINE_KIND,
        vocab_size=config.vocab_size,
        max_sequence_length=min(config.max_position_embeddings, batching.max_sequence_tokens),
        max_batch_size=options.max_batch_size,
        takes_priority=True,
    )
    return batching, ready


def _load_embedding(engine_dir: Path, sink: Sink, options: Options, pooling: Pooling) -> EmbeddingEngine:
    model = _read_model(AutoModel, engine_dir, options)
    if model.config.is_encoder_decoder:
        raise _start_failed(f"{type(model).__name__} has an encoder and a decoder, and embeds with neither")
    config = model.config.get_text_config()
    ready = Ready(
        engine_kind=ENGINE_KIND,
        vocab_size=config.vocab_size,
        max_sequence_length=pooling.max_tokens or config.max_position_embeddings,
        max_batch_size=options.max_batch_size,
        is_embedding=True,
    )
    return EmbeddingEngine(_placed(model, options), pooling, sink, ready)


def _load_model(engine_dir: Path, options: Options) -> PreTrainedModel:
    model = _read_model(AutoModelForCausalLM, engine_dir, options)
    config = model.config.get_text_config()
    absent = [name for name in _NEEDED_FACTS if getattr(config, name, None) is None]
    if absent:
        raise _start_failed(f"{type(config).__name__} has no {absent[0]}, which continuous batching needs")
    if options.is_cpu:
        attention.install()
    model = _placed(model, options)
    if not options.is_cpu:
        gpu_attention.install(model)
    return model


def _read_model(kind: Any, engine_dir: Path, options: Options) -> PreTrainedModel:
    """The model by the library's class ``kind``."""
    transformers_logging.disable_progress_bar()
    # The library logs sizes, seeds and hints about attention at every start.
    logging.getLogger(LIBRARY_LOGGER).setLevel(logging.WARNING)
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
        raise _start_failed(f"the weights lack {', '.join(missing[:3])}")
    loaded: PreTrainedModel = model
    return loaded


def _placed(model: PreTrainedModel, options: Options) -> PreTrainedModel:
    """The model on its device."""
    if not options.is_cpu:
        return model.to(options.device)
    if model.get_memory_footprint() <= _ONE_THREAD_WEIGHT_BYTES:
        torch.set_num_threads(1)
    return model


def _start_failed(reason: str) -> EngineStartFailed:
    return EngineStartFailed(engine_kind=ENGINE_KIND, reason=reason)
