"""What can't be loaded is refused with its reason, and a library of another layout is not used."""

import platform
from ctypes import CDLL, CFUNCTYPE, c_int32, c_void_p, memset, sizeof
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("xllamacpp", reason="runs in the engine environment")

from engine.kinds import GGUF_NAME
from errors.engines import EngineStartFailed
from errors.settings import InvalidSetting
from runner.engines.llama_cpp import library
from runner.engines.llama_cpp.adapter import load
from tests.runner.engines.recording_sink import RecordingSink

pytestmark = pytest.mark.engine_env


@pytest.mark.parametrize(
    ("content", "reason"), [(None, f"has no {GGUF_NAME}"), (b"GGUF" + bytes(100), "can't load model.gguf")]
)
def test_a_file_that_is_missing_or_none_is_refused(
    tmp_path: Path, content: bytes | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / GGUF_NAME).write_bytes(content)
    with pytest.raises(EngineStartFailed, match=reason):
        load(tmp_path, RecordingSink(), {})


@pytest.mark.parametrize(
    "option", [{"max_batch_size": "257"}, {"max_batch_size": "0"}, {"max_tokens_in_paged_kv_cache": "-1"}]
)
def test_a_wrong_option_is_refused_by_name(tmp_path: Path, option: dict[str, str]) -> None:
    with pytest.raises(InvalidSetting, match=next(iter(option))):
        load(tmp_path, RecordingSink(), option)


class _Moved:
    """The library, whose context parameters have one more number at their beginning."""

    def __init__(self, real: CDLL) -> None:
        self._real = real

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)

    def llama_context_default_params(self) -> library.ContextParams:
        moved = bytes(4) + bytes(self._real.llama_context_default_params())
        return library.ContextParams.from_buffer_copy(moved)


def test_a_library_with_another_layout_is_refused() -> None:
    real = library.open_library()
    with pytest.raises(
        EngineStartFailed, match=r"has n_ctx = 0 in place of 512 in llama_context_default_params"
    ):
        library.check_layout(_Moved(real))


@pytest.mark.skipif(platform.machine() != "x86_64", reason="sizes are known on x86-64 alone")
@pytest.mark.parametrize("grown", ["llama_model_default_params", "llama_batch_get_one"])
def test_a_library_whose_structures_have_grown_is_refused(grown: str) -> None:
    made = CFUNCTYPE(c_void_p, c_void_p, c_void_p, c_int32)

    def returning(name: str) -> Any:
        num_bytes = sizeof(library._STRUCTURES[name]) + (8 if name == grown else 0)
        return made(lambda place, *_: memset(place, 0, num_bytes))

    functions = {name: returning(name) for name in library._STRUCTURES}
    with pytest.raises(
        EngineStartFailed, match=rf"llama.cpp b9 returns more than \d+ bytes from {grown}; install"
    ):
        library.check_sizes(SimpleNamespace(llama_version=lambda: b"b9", **functions))


def test_without_the_package_its_name_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "PACKAGE", "no_such_package")
    with pytest.raises(ModuleNotFoundError, match="no_such_package"):
        library.open_library()
