"""A compiled engine served: real Triton, real Cog, real mpirun; TensorRT-LLM itself is a stand-in."""

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import yaml

from tests.runner.engines.server.test_ranks import pids_of
from tests.runner.paced_engine import PacedModel
from tests.runner.servers import (
    DEADLINE_S,
    HOST,
    SLOT,
    CogUnderTest,
    TritonUnderTest,
    engine_pids,
    wait_until,
)
from tests.runner.slot.test_model import stream_of, tokens
from tests.runner.tensorrt_llm_engine import make_compiled_model, write_engine_python
from tests.standins.gpus import make_gpus, without_driver

PROMPT = [10, 11, 12]
STREAM = f"{SLOT}/generate_stream"
GREEDY = {"runtime_top_k": 1}
ARGUMENTS = {"max_queue_size": 6, "max_beam_width": 2, "stats_check_period_ms": 50}


pytestmark = [
    without_driver,
    pytest.mark.servers,
]


def server_config(folder: Path, **arguments: object) -> str:
    path = folder / "server.yaml"
    path.write_text(yaml.safe_dump({"instantiate": {"server": {"tensorrt_llm": {"args": arguments}}}}))
    return str(path)


@pytest.fixture(scope="module", autouse=True)
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two GPUs and the engine environment, stood in for."""
    folder = tmp_path_factory.mktemp("machine")
    make_gpus(folder, sm=90, count=2, memory_mib=81559)
    write_engine_python(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
        yield folder


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> PacedModel:
    return make_compiled_model(tmp_path_factory.mktemp("compiled"))


@pytest.fixture(scope="module")
def server(
    compiled: PacedModel, machine: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TritonUnderTest]:
    folder = tmp_path_factory.mktemp("triton")
    config = server_config(folder, **ARGUMENTS)
    python = str(machine / "python")
    server = TritonUnderTest(compiled, folder, COG_TRITON_ENGINE_PYTHON=python, COG_TRITON_CONFIG=config)
    yield server
    server.close()
    assert engine_pids(server.http_port) == []


def figures(server: TritonUnderTest) -> dict[str, float]:
    """NVIDIA's gauges, by metric and kind."""
    port = server.environment["TRITON_METRICS_PORT"]
    lines = httpx.get(f"http://{HOST}:{port}/metrics", timeout=DEADLINE_S).text.splitlines()
    found = {}
    for line in lines:
        if line.startswith("nv_trt_llm_"):
            name, value = line.rsplit(" ", 1)
            metric, labels = name.split("{")
            kind = next(each for each in labels.split(",") if not each.startswith(("model=", "version=")))
            found[f"{metric} {kind.split(chr(34))[1]}"] = float(value)
    return found


def test_a_beam_search_answers_with_every_beam(server: TritonUnderTest) -> None:
    answer = server.generate_ids(PROMPT, 4, beam_width=2, runtime_top_k=1).json()
    assert answer["output_ids"] == [10, 11, 12, 10, 11, 12, 13, 11]
    assert answer["sequence_length"] == [4, 4]
    refused = server.post(STREAM, {**stream_of(PROMPT, 4), "beam_width": 2})
    assert "E1104 UnsupportedArgument: streaming=true" in refused.text
    assert "E1103" in server.generate_ids(PROMPT, 3, beam_width=2, num_return_sequences=3).text


def test_figures_of_the_iterations_have_nvidias_names(server: TritonUnderTest) -> None:
    cancelled = server.counters.cancelled
    bodies = [{**stream_of([number, 5], 500), **GREEDY} for number in range(6)]
    requests, blocks = "nv_trt_llm_request_metrics", "nv_trt_llm_kv_cache_block_metrics"

    def busy() -> dict[str, float] | None:
        now = figures(server)
        is_full = (now[f"{requests} active"], now[f"{requests} waiting"]) == (4, 2)
        return now if is_full and 0 < now[f"{blocks} used"] < now[f"{blocks} max"] else None

    with ThreadPoolExecutor(6) as pool:
        streams = [pool.submit(server.stream, STREAM, body) for body in bodies]
        found = wait_until(busy)
        assert found is not None
        assert found[f"{blocks} tokens_per"] == 64
        wait_until(lambda: 0 < server.counters["engine_cache_used_ratio"] < 1)
        assert all(len(tokens(stream.result())) == 500 for stream in streams)
    wait_until(lambda: figures(server)[f"{requests} active"] == 0)
    wait_until(lambda: figures(server)[f"{blocks} used"] == 0)
    assert server.counters.cancelled == cancelled


@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.needs_mpirun)])
def test_cog_streams_predictions_from_the_tar(machine: Path, tmp_path: Path, world_size: int) -> None:
    model = make_compiled_model(tmp_path / "model", world_size=world_size)
    python = str(machine / "python")
    cog = CogUnderTest(model, tmp_path, COG_TRITON_ENGINE_PYTHON=python, WORLD_SIZE=str(world_size))
    try:
        prompt = "What is machine learning?"
        inputs = {"prompt": prompt, "max_tokens": 30, "temperature": 0}
        answer = cog.predict(**inputs)
        assert answer["status"] == "succeeded"
        assert "".join(answer["output"]) == model.expected_text(prompt, 30)
        headers = {"Accept": "text/event-stream"}
        with cog.client.stream("POST", "/predictions", json={"input": inputs}, headers=headers) as response:
            lines = list(response.iter_lines())
        assert sum(line.startswith("event: output") for line in lines) > 3
        stopped = cog.predict(**inputs, stop_sequences="machine")
        assert "".join(stopped["output"]) == model.expected_text(prompt, 30).split("machine")[0]
        cog.counters.wait_for_cancelled(1)
        too_long = cog.predict(prompt="word " * 600, max_tokens=3)
        assert "E1002" in too_long["error"]
        assert set(pids_of(tmp_path)) == ({"mpirun", "rank 0", "rank 1"} if world_size == 2 else set())
    finally:
        cog.close()
    wait_until(lambda: engine_pids(cog.triton_http_port) == [])
