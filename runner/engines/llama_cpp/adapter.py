"""The ``llama_cpp`` engine: GGUF models on the CPU, by llama.cpp. It does without torch."""

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from engine.kinds import GGUF_NAME
from runner.engines.batched_engine import BatchedEngine
from runner.engines.guides.compile import open_guides
from runner.engines.llama_cpp.batching import Batching
from runner.engines.llama_cpp.library import ENGINE_KIND, start_failed
from runner.engines.llama_cpp.model import Model, Options
from runner.engines.protocol.adapter import EngineAdapter, Sink
from runner.engines.protocol.messages import ALL_GUIDE_TYPES, Ready


def load(engine_dir: Path, sink: Sink, options: Mapping[str, str]) -> EngineAdapter:
    """Load the model and start its loop. ``options``: see ``Options``.

    Raises InvalidSetting for a bad option, ModuleNotFoundError and EngineStartFailed.
    """
    parsed = Options.parse(options)
    path = engine_dir / GGUF_NAME
    if not path.is_file():
        raise start_failed(f"{engine_dir} has no {GGUF_NAME}")
    # NOTE: each thread that computes has OpenMP workers of its own. Those of this thread end with it.
    with ThreadPoolExecutor(max_workers=2, thread_name_prefix="load") as loader:
        loading = loader.submit(Model, path, parsed)
        guides = loader.submit(open_guides, engine_dir).result()
        model = loading.result()
    ready = Ready(
        engine_kind=ENGINE_KIND,
        vocab_size=model.vocab_size,
        max_sequence_length=model.max_sequence_length,
        max_batch_size=parsed.max_batch_size,
        guide_types=() if guides is None else ALL_GUIDE_TYPES,
        takes_priority=True,
    )
    batching = Batching(model, parsed.max_batch_size, sink)
    batching.start()
    return BatchedEngine(batching, sink, ready, guides)
