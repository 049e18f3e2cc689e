"""A compiled engine served: real Triton, real Cog, real mpirun; TensorRT-LLM itself is a stand-in."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import pytest
import yaml

from tests.runner.paced_engine import PacedModel
from tests.runner.servers import (
    DEADLINE_S,
    HOST,
    SLOT,
    CogUnderTest,
    TritonUnderTest,
    command_of,
    engine_pids,
    events,
    is_running,
    wait_until,
)
from tests.runner.slot.test_model import GrpcStream, stream_of, tokens
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


def test_a_stream_brings_each_token_and_its_reason(server: TritonUnderTest) -> None:
    stream = server.stream(STREAM, {**stream_of(PROMPT, 400), **GREEDY})
    assert tokens(stream) == [PROMPT[index % 3] for index in range(400)]
    assert len(stream) > 10
    assert stream[-1]["finish_reason"] == "length"


def test_many_streams_at_once_never_mix(server: TritonUnderTest) -> None:
    def one(number: int) -> bool:
        ids = [20 + number, 120 + number]
        answer = server.stream(STREAM, {**stream_of(ids, 30), **GREEDY})
        return tokens(answer) == [ids[index % 2] for index in range(30)]

    # All at once may be in the engine's queue, which has room for no more.
    count = ARGUMENTS["max_queue_size"]
    with ThreadPoolExecutor(count) as pool:
        assert all(pool.map(one, range(count)))


def test_stop_words_and_end_ids_end_it(server: TritonUnderTest) -> None:
    stopped = server.generate_ids(PROMPT, 40, **GREEDY, end_id=12)
    assert stopped.json()["output_ids"] == [10, 11]
    assert stopped.json()["finish_reason"] == "end"
    stream = GrpcStream(server.grpc_port)
    stream.send(
        "tensorrt_llm",
        input_ids=np.array([PROMPT], np.int32),
        request_output_len=np.array([[40]], np.int32),
        runtime_top_k=np.array([[1]], np.int32),
        stop_words_list=np.array([[[11, 12, 9], [2, 3, -1]]], np.int32),
    )
    outputs, _ = stream.receive()
    stream.close()
    assert outputs["output_ids"].tolist() == [[PROMPT]]
    assert outputs["finish_reason"].tolist() == [[b"stop"]]


def test_all_sampling_fields_of_the_contract_are_taken(server: TritonUnderTest) -> None:
    fields: dict[str, object] = {
        "temperature": 0.7,
        "runtime_top_k": 50,
        "runtime_top_p": 0.9,
        "runtime_top_p_min": 0.1,
        "runtime_top_p_decay": 0.9,
        "runtime_top_p_reset_ids": 5,
        "len_penalty": 1.5,
        "repetition_penalty": 1.1,
        "presence_penalty": 0.2,
        "frequency_penalty": 0.3,
        "min_length": 3,
        "random_seed": 2**64 - 1,
        "early_stopping": False,
        "beam_search_diversity_rate": 0.0,
        "num_return_sequences": 1,
        "beam_width": 1,
    }
    first = server.generate_ids(PROMPT, 8, **fields).json()["output_ids"]
    assert first == server.generate_ids(PROMPT, 8, **fields).json()["output_ids"]
    assert len(first) == 8
    assert first != server.generate_ids(PROMPT, 8, **{**fields, "random_seed": 3}).json()["output_ids"]


def test_a_beam_search_answers_with_every_beam(server: TritonUnderTest) -> None:
    answer = server.generate_ids(PROMPT, 4, beam_width=2, runtime_top_k=1).json()
    assert answer["output_ids"] == [10, 11, 12, 10, 11, 12, 13, 11]
    assert answer["sequence_length"] == [4, 4]
    refused = server.post(STREAM, {**stream_of(PROMPT, 4), "beam_width": 2})
    assert "E1104 UnsupportedArgument: streaming=true" in refused.text


def test_several_sequences_of_a_prompt_have_their_index_and_seeds_that_follow(
    server: TritonUnderTest,
) -> None:
    stream = GrpcStream(server.grpc_port)
    stream.send(
        "tensorrt_llm",
        input_ids=np.array([PROMPT], np.int32),
        request_output_len=np.array([[8]], np.int32),
        runtime_top_p=np.array([[0.9]], np.float32),
        random_seed=np.array([[7]], np.uint64),
        num_return_sequences=np.array([[3]], np.int32),
        streaming=np.array([[True]]),
    )
    received: dict[int, list[int]] = {0: [], 1: [], 2: []}
    is_last = False
    while not is_last:
        outputs, is_last = stream.receive()
        assert "batch_index" not in outputs
        received[int(outputs["sequence_index"][0, 0])] += outputs["output_ids"][0, 0].tolist()
    stream.close()
    for index in range(3):
        alone = server.generate_ids(PROMPT, 8, runtime_top_p=0.9, random_seed=7 + index).json()
        assert received[index] == alone["output_ids"]
    refused = server.generate_ids(PROMPT, 3, beam_width=2, num_return_sequences=3)
    assert "E1103" in refused.text
    best = server.generate_ids(PROMPT, 3, beam_width=2, num_return_sequences=1).json()
    assert best["output_ids"] == PROMPT


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"input_ids": [5] * 512}, "E1002"),
        ({"beam_width": 5}, "E1104"),
        ({"runtime_top_p_decay": 0.0}, "E1103"),
        ({"lora_task_id": 9}, "E2401"),
        ({"return_context_logits": True}, "E1104"),
    ],
)
def test_a_wrong_request_fails_alone(server: TritonUnderTest, wrong: dict[str, object], code: str) -> None:
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(server.stream, STREAM, {**stream_of(PROMPT, 60), **GREEDY})
        body = {"input_ids": PROMPT, "request_output_len": 3, **wrong}
        response = server.post(f"{SLOT}/generate", body)
        assert response.json()["error"].startswith(code)
        assert len(tokens(other.result())) == 60


def test_a_client_that_goes_away_frees_its_sequence(server: TritonUnderTest) -> None:
    cancelled = server.counters.cancelled
    body = {**stream_of(PROMPT, 400), **GREEDY}
    with httpx.stream("POST", f"{server.url}{STREAM}", json=body, timeout=300) as response:
        next(response.iter_lines())
    server.counters.wait_for_cancelled(cancelled + 1)
    wait_until(lambda: server.counters["engine_active_requests"] == 0)


def test_what_the_queue_has_no_room_for_is_e2402_and_the_others_are_served(server: TritonUnderTest) -> None:
    def one(_: int) -> str:
        answer = server.generate_ids(PROMPT, 100, **GREEDY).json()
        return str(answer.get("error", answer.get("finish_reason")))

    with ThreadPoolExecutor(30) as pool:
        answers = list(pool.map(one, range(30)))
    refused = [answer for answer in answers if answer != "length"]
    assert 0 < len(refused) < 30
    # Triton itself has a queue of as many, in front of the slot; which of the two is full, is a race.
    assert all("E2402" in answer or "maximum queue size" in answer for answer in refused)
    assert server.generate_ids(PROMPT, 3, **GREEDY).status_code == 200


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


def test_a_lost_gpu_is_told_and_the_engine_comes_back(server: TritonUnderTest) -> None:
    restarts = server.counters["engine_restarts_total"]
    pid = server.engine_pid()
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_running(pid))
    wait_until(lambda: server.counters["engine_restarts_total"] == restarts + 1)
    wait_until(lambda: server.generate_ids(PROMPT, 3, **GREEDY).status_code == 200)


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
        assert len(rank_pids(tmp_path)) == (2 if world_size == 2 else 0)
    finally:
        cog.close()
    wait_until(lambda: engine_pids(cog.triton_http_port) == [])


@pytest.mark.needs_mpirun
def test_two_ranks_behind_triton_survive_the_death_of_one(machine: Path, tmp_path: Path) -> None:
    model = make_compiled_model(tmp_path / "model", world_size=2, tokens_per_second=20)
    server = TritonUnderTest(model, tmp_path, COG_TRITON_ENGINE_PYTHON=str(machine / "python"))
    try:
        rank = rank_pids(model.directory)[1]
        body = {**stream_of(PROMPT, 500), **GREEDY}
        with httpx.stream("POST", f"{server.url}{STREAM}", json=body, timeout=DEADLINE_S) as response:
            lines = response.iter_lines()
            next(lines)  # It runs: the counters may still have the test prediction.
            os.kill(rank, signal.SIGKILL)
            last = events("\n".join(lines))[-1]
        assert last["error"].startswith("E2403 RankEnded: The ranks of the 2-GPU engine ended")
        assert server.service.stack.triton.restarts == 0
        wait_until(lambda: server.generate_ids(PROMPT, 3, **GREEDY).status_code == 200)
    finally:
        server.close()
    assert not is_running(rank)


@pytest.mark.needs_mpirun
def test_a_killed_engine_server_leaves_no_ranks_and_triton_stays(machine: Path, tmp_path: Path) -> None:
    model = make_compiled_model(tmp_path / "model", world_size=2)
    server = TritonUnderTest(model, tmp_path, COG_TRITON_ENGINE_PYTHON=str(machine / "python"))
    try:
        engine = server.service.stack.engine
        assert engine is not None
        before = [server.engine_pid(), *rank_pids(model.directory).values()]
        os.kill(before[0], signal.SIGKILL)
        wait_until(lambda: not any(map(is_running, before)))
        wait_until(lambda: engine.restarts == 1 and engine.is_serving)
        assert server.service.stack.triton.restarts == 0
        wait_until(lambda: server.generate_ids(PROMPT, 3, **GREEDY).status_code == 200)
    finally:
        server.close()
    wait_until(lambda: not rank_pids(model.directory))


def rank_pids(directory: Path) -> dict[int, int]:
    """The processes of the ranks of engines below a folder, by rank."""
    pids = {}
    for path in Path("/proc").glob("[0-9]*"):
        command = command_of(int(path.name))
        if "engines.engine_child" in command and str(directory) in command and "mpirun" not in command:
            match = re.search(r"OMPI_COMM_WORLD_RANK=(\d+)", (path / "environ").read_text())
            assert match is not None
            pids[int(match[1])] = int(path.name)
    return pids


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (
            {"kv_cache_free_gpu_mem_fraction": 2},
            "E1006 .*gpu_mem_fraction must be a number from 0",
        ),
        ({"max_beam_width": 3}, "E1006 .*max_beam_width must be at most 2"),
        ({"gpu_device_ids": "0,1"}, "E1006 .*gpu_device_ids must be 1 device ids"),
    ],
)
def test_a_wrong_setting_stops_the_start_with_its_name(
    compiled: PacedModel, machine: Path, tmp_path: Path, arguments: dict[str, object], says: str
) -> None:
    with pytest.raises(Exception, match=says):
        TritonUnderTest(
            compiled,
            tmp_path,
            COG_TRITON_ENGINE_PYTHON=str(machine / "python"),
            COG_TRITON_CONFIG=server_config(tmp_path, **arguments),
        )
