"""The same random model, served by each kind whose loop works on a batch of sequences in its process.

The transformers kind chooses tokens in the library's step, or after it, as on a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.runner.engines.transformers.transformers_models import Served

Serve = Callable[..., "AbstractContextManager[Served]"]


@pytest.fixture(scope="module", params=["transformers", "transformers, as on a GPU", "llama_cpp"])
def kind(request: pytest.FixtureRequest) -> str:
    pytest.importorskip("torch", reason="runs in the engine environment")
    if request.param == "llama_cpp":
        pytest.importorskip("xllamacpp", reason="runs in the engine environment")
    return str(request.param)


@pytest.fixture(scope="module")
def max_length(kind: str) -> int:
    """Return the length of the longest sequence: llama.cpp takes long only for a longer one."""
    return 1 << 14 if kind == "llama_cpp" else 1 << 10


@pytest.fixture(scope="module")
def directory(kind: str, max_length: int, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from transformers import AutoModelForCausalLM

    from tests.runner.engines.guides.byte_tokenizer import save_byte_tokenizer
    from tests.runner.engines.llama_cpp.gguf_file import write_gguf
    from tests.runner.engines.transformers.transformers_models import llama, save_model

    folder = save_model(llama(max_position_embeddings=max_length), tmp_path_factory.mktemp("engine"))
    if kind == "llama_cpp":
        write_gguf(AutoModelForCausalLM.from_pretrained(folder), folder)
    save_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def serve(kind: str, directory: Path) -> Iterator[Serve]:
    from runner.engines.llama_cpp.adapter import load as load_gguf
    from runner.engines.transformers import batching
    from runner.engines.transformers.adapter import load
    from tests.runner.engines.transformers.transformers_models import serve

    with pytest.MonkeyPatch.context() as patch:
        if kind == "transformers, as on a GPU":
            patch.setattr(batching, "needs_chosen_after", lambda model: True)
        yield partial(serve, directory, load_gguf if kind == "llama_cpp" else load)


@pytest.fixture(scope="module")
def served(serve: Serve) -> Iterator[Served]:
    with serve() as served:
        yield served
