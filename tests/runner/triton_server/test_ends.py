"""Tritons that each end in their own way: they hang, are given up, stop, are closed."""

import asyncio
import os
import signal
import time
from contextlib import closing
from pathlib import Path

import pytest

from errors.coded_error import CodedError
from errors.engines import EngineCrashed
from errors.triton import ServerStopping
from runner.engines.paced.faults import FAULT_SEEDS, VARIABLE
from runner.engines.protocol.messages import Sampling
from runner.generation.request import GenerationRequest
from runner.settings.paths import engine_socket_path
from runner.supervision import supervised
from tests.runner.paced_engine import PacedModel, make_paced_model
from tests.runner.running import QUESTION, Running, answer, is_healthy
from tests.runner.servers import (
    TritonUnderTest,
    assert_ended,
    engine_pids,
    wait_until,
)

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> PacedModel:
    """Return an engine of this module's own, so that its worker is found by its folder."""
    return make_paced_model(tmp_path_factory.mktemp("ends") / "model", 200)


def test_an_engine_that_hangs_silently_is_found_by_its_silence_and_a_stalled_request_alone_is_not(
    model: PacedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "requests")
    config = tmp_path / "config.yaml"
    config.write_text("instantiate: {server: {tensorrt_llm: {args: {engine_hang_timeout_s: 1}}}}")
    with closing(TritonUnderTest(model, tmp_path, COG_TRITON_CONFIG=str(config))) as server:
        seeds = {fault: seed for seed, fault in FAULT_SEEDS.items()}

        async def read(fault: str) -> None:
            request = GenerationRequest(QUESTION, 40, 0, (), Sampling(seed=seeds[fault]))
            async for _ in server.service.generate(request).text():
                pass

        async def others_go_on() -> None:
            stalled = asyncio.ensure_future(read("stall"))
            for _ in range(20):
                await read("garbage")
            assert not stalled.done()
            stalled.cancel()

        server.run(others_go_on())
        assert server.counters["engine_restarts_total"] == 0
        with pytest.raises(EngineCrashed, match="it hangs: requests waited"):
            server.run(read("hang"))
        wait_until(lambda: is_healthy(server))


def test_a_triton_that_answers_nothing_for_too_long_is_killed_and_comes_back(
    model: PacedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its silence is pretended: nothing makes a real Triton hang in a state that is not seen at once."""
    monkeypatch.setattr(supervised, "_HEARTBEAT_S", 0.05)
    with closing(TritonUnderTest(model, tmp_path, TRITON_HANG_TIMEOUT="3")) as server:

        async def is_silent() -> bool:
            return False

        time.sleep(0.5)
        assert server.service.stack.triton.restarts == 0
        running = Running(server, 3000)
        monkeypatch.setattr(server.service.stack.triton, "is_answering", is_silent)
        wait_until(lambda: any("did not answer for 3 s" in line for line in server.log))
        monkeypatch.undo()
        wait_until(lambda: is_healthy(server))
        assert server.service.stack.triton.restarts == 1
        assert server.run(running.read_all()) == model.expected_text(QUESTION, 3000)
        os.kill(server.engine_pid(), signal.SIGSTOP)  # It does not outlive its service although it hangs.
    assert_ended(server.http_port)


def test_a_triton_that_fails_often_is_always_started_again_and_an_engine_is_given_up(
    model: PacedModel, tmp_path: Path
) -> None:
    with closing(TritonUnderTest(model, tmp_path, FAILURE_LIMIT="1")) as server:
        for _ in range(2):
            wait_until(lambda: is_healthy(server))
            triton_pid = server.service.stack.triton.pid
            os.kill(triton_pid, signal.SIGKILL)
            wait_until(lambda: server.service.stack.triton.down_reason)
            assert answer(server) == model.expected_text(QUESTION, 12)
        wait_until(lambda: is_healthy(server))
        assert not server.service.unrecoverable.is_set()
        os.kill(server.engine_pid(), signal.SIGKILL)
        wait_until(server.service.unrecoverable.is_set)


def test_stopping_lets_requests_end_refuses_others_and_ends_those_that_take_too_long(
    model: PacedModel, tmp_path: Path
) -> None:
    with closing(TritonUnderTest(model, tmp_path, STOP_GRACE_PERIOD="1")) as server:
        long, short = Running(server), Running(server, 20)

        async def drain() -> None:
            draining = asyncio.ensure_future(server.service.drain())
            await asyncio.sleep(0)
            assert not await server.service.is_healthy()
            with pytest.raises(ServerStopping):
                async for _ in Running.request(server, 3).text():
                    pass
            assert await short.read_all() == model.expected_text(QUESTION, 20)
            with pytest.raises(ServerStopping, match="grace period of 1 s is over"):
                await long.read_all()
            await draining

        server.run(drain())
    assert engine_pids(server.http_port) == []


def test_closing_while_requests_run_ends_them_and_leaves_nothing(model: PacedModel, tmp_path: Path) -> None:
    server = TritonUnderTest(model, tmp_path)
    running = Running(server)

    async def close_meanwhile() -> CodedError:
        reading = asyncio.ensure_future(asyncio.to_thread(running.error))
        await server.service.close()
        return await reading

    assert server.run(close_meanwhile()).code == "E2107"
    server.close()
    assert not engine_socket_path(server.http_port).exists()
    assert_ended(server.http_port)
