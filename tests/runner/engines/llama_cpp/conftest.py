"""A random model, served by the ``llama_cpp`` engine, and the same weights in transformers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.runner.engines.transformers.transformers_models import Served

Serve = Callable[..., "AbstractContextManager[Served]"]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoModelForCausalLM

    from tests.runner.engines.guides.byte_tokenizer import save_byte_tokenizer
    from tests.runner.engines.llama_cpp.gguf_file import write_gguf
    from tests.runner.engines.transformers.transformers_models import llama, save_model

    folder = tmp_path_factory.mktemp("llama_cpp")
    save_model(llama(max_position_embeddings=1 << 14), folder / "saved")
    engine = write_gguf(AutoModelForCausalLM.from_pretrained(folder / "saved"), folder / "engine")
    save_byte_tokenizer(engine)
    return folder


@pytest.fixture(scope="module")
def serve(directory: Path) -> Serve:
    import torch
    from transformers import AutoModelForCausalLM

    from runner.engines.llama_cpp.adapter import load
    from tests.runner.engines.recording_sink import RecordingSink
    from tests.runner.engines.transformers.transformers_models import Served

    @contextmanager
    def serve(**options: str) -> Iterator[Served]:
        sink = RecordingSink()
        model = AutoModelForCausalLM.from_pretrained(directory / "saved", dtype=torch.float32)
        engine = load(directory / "engine", sink, options)
        try:
            yield Served(engine, sink, model)
        finally:
            engine.close()

    return serve


@pytest.fixture(scope="module")
def served(serve: Serve) -> Iterator[Served]:
    with serve() as served:
        yield served
