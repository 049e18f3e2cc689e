"""The ``transformers`` engine: continuous batching of Hugging Face's transformers, on CPU or GPU.

It is the default without a GPU, and the reference for the other engines. The model is any causal language
model that the library can batch, or an embedding model (``embedding``); its weights are in the engine
directory as the library saves them.
"""

import threading
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
from transformers import AutoModel

from engine.pooling import Pooling, read_pooling
from errors.coded_error import CodedError
from runner.engines.guides.compile import GuideCompiler, open_guides
from runner.engines.guides.follow import Follower
from runner.engines.protocol.adapter import EngineAdapter, Sink
from runner.engines.protocol.messages import ALL_GUIDE_TYPES, Ready, Statistics, Submit
from runner.engines.transformers.batching import Batching
from runner.engines.transformers.embedding import EmbeddingEngine
from runner.engines.transformers.loading import load_model, placed, read_model, start_failed
from runner.engines.transformers.sequence import Sequence
from runner.engines.transformers.settings import ENGINE_KIND, Options, batching_config

_CLOSE_TIMEOUT_S = 30.0


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
        """Submit a request once its guide is compiled, or is invalid."""
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
        """Stop the loop. NOTE: its thread is not a daemon: the process does not exit without this."""
        self._batching.close(_CLOSE_TIMEOUT_S)


def load(engine_dir: Path, sink: Sink, options: Mapping[str, str]) -> EngineAdapter:
    """Load the model and start its loop. ``options``: see ``Options``.

    Raises ``InvalidSetting`` for a bad option, ``EngineStartFailed``, ``PoolingUnsupported``, and the
    library's errors.
    """
    parsed = Options.parse(options)
    if not (engine_dir / "config.json").is_file():
        raise start_failed(f"{engine_dir} has no config.json")
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
    model = load_model(engine_dir, options)
    config = model.config.get_text_config()
    settings = batching_config(options, config, model.dtype, model.get_memory_footprint())
    batching = Batching(model, settings, sink)
    ready = Ready(
        engine_kind=ENGINE_KIND,
        vocab_size=config.vocab_size,
        max_sequence_length=min(config.max_position_embeddings, batching.max_sequence_tokens),
        max_batch_size=options.max_batch_size,
        takes_priority=True,
    )
    return batching, ready


def _load_embedding(engine_dir: Path, sink: Sink, options: Options, pooling: Pooling) -> EmbeddingEngine:
    model = read_model(AutoModel, engine_dir, options)
    if model.config.is_encoder_decoder:
        raise start_failed(f"{type(model).__name__} has an encoder and a decoder, and embeds with neither")
    config = model.config.get_text_config()
    ready = Ready(
        engine_kind=ENGINE_KIND,
        vocab_size=config.vocab_size,
        max_sequence_length=pooling.max_tokens or config.max_position_embeddings,
        max_batch_size=options.max_batch_size,
        is_embedding=True,
    )
    return EmbeddingEngine(placed(model, options), pooling, sink, ready)
