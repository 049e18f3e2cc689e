"""Other versions of the LLM API: what one lacks ends the start, or is refused to requests that need it."""

import json
from pathlib import Path

import pytest

from errors.wire import ExitReason
from runner.engines.protocol.messages import Sampling, Submit
from tests.runner.engines.lora_adapters import make_adapter
from tests.runner.engines.tensorrt_llm_pytorch.llm_api_engines import (
    LIBRARY,
    events_config,
    make_directory,
    running,
    started,
)

VERSIONS = json.loads((LIBRARY / "versions.json").read_text())
PUBLISHED = [name for name, version in VERSIONS.items() if version["source"] != "made up"]
GREEDY = Sampling(top_k=1)


def parameters(version: str) -> list[str]:
    names: list[str] = VERSIONS[version]["parts"][".LLM"]["generate_async"]
    return names


@pytest.mark.parametrize("version", PUBLISHED)
def test_each_published_version_serves_and_nothing_is_dropped_silently(tmp_path: Path, version: str) -> None:
    directory = make_directory(tmp_path / "engine", lora_config={"max_loras": 1})
    make_adapter(directory / "lora" / "pirate", 3)
    with running(directory, tmp_path / "run", version=version) as engine:
        assert engine.answer(Submit(1, [5, 6], 3, GREEDY)) == ([5, 6, 5], "length")
        assert engine.answer(Submit(2, [5, 6], 2, GREEDY, lora_name="pirate")) == ([8, 9], "length")
        salted = engine.answer(Submit(3, [5, 6], 2, GREEDY, cache_salt="mine"))
        assert "E1104" in engine.answer(Submit(4, [5, 6], 2, GREEDY, priority=1))[1]
        if "cache_salt" in parameters(version):
            assert salted == ([5, 6], "length")
            assert engine.request(3)["cache_salt"] == "mine"
        else:
            assert "E1104" in salted[1]
            assert "mine" not in salted[1], "a salt may be secret"
            assert "install TensorRT-LLM 1.1 or later" in salted[1]
        engine.send(Submit(5, [5], 4000, GREEDY))
        engine.wait_for_tokens(5)
        engine.cancel(5)
        assert engine.wait_for_end(5) == "cancelled"


@pytest.mark.parametrize("version", PUBLISHED)
def test_priorities_need_a_version_that_takes_them(tmp_path: Path, version: str) -> None:
    options = {"scheduling_policy": "priority"}
    directory = make_directory(tmp_path / "engine")
    if "priority" in parameters(version):
        with running(directory, tmp_path / "run", version=version, **options) as engine:
            assert engine.answer(Submit(1, [5, 6], 2, GREEDY, priority=1)) == ([5, 6], "length")
            assert engine.request(1)["priority"] == 0.25
    else:
        told = failed(directory, tmp_path / "run", version, **options)
        assert "E1008" in told
        assert "tensorrt_llm.LLM.generate_async.priority in TensorRT-LLM 1.3.0rc7 was not found" in told
        assert "leave scheduling_policy out" in told


def test_a_start_tells_all_that_a_version_lacks(tmp_path: Path) -> None:
    told = failed(make_directory(tmp_path / "engine"), tmp_path / "run", "without fields")
    assert "E1008" in told
    for name in (
        "LLM.generate_async(inputs,sampling_params,*,streaming,lora_request)",
        "SamplingParams.min_p",
        "SamplingParams.embedding_bias",
        "llmapi.GuidedDecodingParams.regex",
    ):
        assert f"tensorrt_llm.{name}" in told


def test_events_are_needed_only_with_kv_events(tmp_path: Path) -> None:
    directory = make_directory(tmp_path / "engine")
    with running(directory, tmp_path / "1", version="without events") as engine:
        assert engine.answer(Submit(1, [5], 1, GREEDY))[1] == "length"
    told = failed(
        directory, tmp_path / "2", "without events", kv_events_config=json.dumps(events_config("/tmp"))
    )
    assert "get_kv_cache_events_async" in told


def failed(directory: Path, folder: Path, version: str, **options: str) -> str:
    with started(directory, folder, version=version, **options) as server:
        server.process.wait()
        reason: ExitReason = server.exit_reason
        return str(reason.read())
