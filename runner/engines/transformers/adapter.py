"""The ``transformers`` engine: continuous batching of Hugging Face's transformers, on CPU or GPU.

It is the default without a GPU, and the reference for the other engines. The model is any causal language
model that the library can batch, or an embedding model (``embedding``); its weights are in the engine
directory as the library saves them.
"""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
from transformers import AutoModel

from engine.pooling import Pooling, read_pooling
from runner.engines.batched_engine import BatchedEngine
from runner.engines.guides.compile import open_guides
from runner.engines.protocol.adapter import EngineAdapter, Sink
from runner.engines.protocol.messages import ALL_GUIDE_TYPES, Ready
from runner.engines.transformers.batching import Batching
from runner.engines.transformers.embedding import EmbeddingEngine
from runner.engines.transformers.loading import load_model, placed, read_model, start_failed
from runner.engines.transformers.settings import ENGINE_KIND, Options, batching_config


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
    return BatchedEngine(batching, sink, ready, guides)


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
