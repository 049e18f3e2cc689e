"""How the runner's Cog server stops: what runs may end, who comes is turned away, and nothing is left."""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.machine.root import SOURCE_ROOT
from runner.cog_server.worker_watch import UNRECOVERABLE_EXIT_CODE
from tests.runner.cog_server.conftest import Webhook
from tests.runner.paced_engine import PacedModel, make_paced_model
from tests.runner.probes import ask
from tests.runner.servers import (
    DEADLINE_S,
    CogUnderTest,
    engine_pids,
    free_ports,
    is_running,
    shared_memory,
    triton_pids,
    wait_until,
)

pytestmark = pytest.mark.servers

QUESTION = "What is machine learning?"
TOKENS_PER_SECOND = 100


@pytest.fixture
def model(tmp_path: Path) -> PacedModel:
    return make_paced_model(tmp_path / "model", TOKENS_PER_SECOND)


@pytest.fixture
def start(model: PacedModel, tmp_path: Path) -> Iterator[Callable[..., CogUnderTest]]:
    servers: list[CogUnderTest] = []

    def start(**environment: str) -> CogUnderTest:
        servers.append(CogUnderTest(model, tmp_path, **environment))
        return servers[-1]

    yield start
    for server in servers:
        pids = [*triton_pids(server.triton_http_port), *engine_pids(server.triton_http_port)]
        server.close()
        wait_until(lambda pids=pids: not any(map(is_running, pids)))  # Killed ones take a moment to end.
        assert shared_memory(server.triton_http_port) == []


def begun(server: CogUnderTest, max_tokens: int) -> Future[dict[str, Any]]:
    # With the test prediction: the counters are up to a second old.
    wait_until(lambda: server.counters["slot_requests_total"] and server.counters.is_settled)

    def predict() -> dict[str, Any]:
        body = {"input": {"prompt": QUESTION, "max_tokens": max_tokens}}
        with suppress(httpx.TransportError):  # Its server may be told to end at once.
            return dict(server.client.post("/predictions", json=body).json())
        return {}

    prediction = ThreadPoolExecutor(1).submit(predict)
    wait_until(lambda: server.counters.running)
    return prediction


def terminate(server: CogUnderTest) -> None:
    os.kill(server.server.pid, signal.SIGTERM)


def exit_code(server: CogUnderTest) -> int:
    return int(server.server._process.wait(DEADLINE_S))


def test_at_sigterm_what_runs_ends_whole_and_who_comes_gets_503_on_a_closed_connection(
    start: Callable[..., CogUnderTest], webhook: Webhook
) -> None:
    """So does an asynchronous one; a client that sends no more is not waited for."""
    server = start()
    running = begun(server, 8 * TOKENS_PER_SECOND)
    url, told = webhook
    body = {
        "input": {"prompt": QUESTION, "max_tokens": 4 * TOKENS_PER_SECOND},
        "webhook": url,
        "webhook_events_filter": ["completed"],
    }
    headers = {"Prefer": "respond-async"}
    httpx.post(f"{server.url}/predictions", json=body, headers=headers, timeout=DEADLINE_S).raise_for_status()
    wait_until(lambda: server.counters.running == 2)
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        client.sendall(b"POST /predictions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{")
        terminate(server)
        wait_until(lambda: server.server.health().get("status") == "UNHEALTHY")
        for path in ("/health-check", "/predictions"):
            refused = httpx.request(
                "GET" if path == "/health-check" else "POST", server.url + path, json={}, timeout=DEADLINE_S
            )
            assert refused.status_code == 503
            assert refused.headers["connection"] == "close"
            assert "E2110 ServerStopping" in refused.json()["detail"]
        answer = running.result(DEADLINE_S)
        assert answer["status"] == "succeeded"
        assert "".join(answer["output"]) == server.model.expected_text(QUESTION, 8 * TOKENS_PER_SECOND)
        assert exit_code(server) == 0
    assert told.get(timeout=DEADLINE_S)["status"] == "succeeded"


@pytest.fixture
def _sigint_interrupts() -> Iterator[None]:
    """Let SIGINT interrupt, as in a command: a job in the background begins with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_sigint_interrupts")
def test_ctrl_c_while_a_command_stops_its_server_ends_what_runs(start: Callable[..., CogUnderTest]) -> None:
    server = start(STOP_GRACE_PERIOD="600")
    server.server._stop_timeout_s = 600
    running = begun(server, 10_000)

    def interrupt() -> None:
        wait_until(lambda: server.server.health().get("status") == "UNHEALTHY")
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt).start()
    server.server.stop()
    assert server.server.exit_code() == 128 + signal.SIGTERM
    assert running.result(DEADLINE_S).get("status") != "succeeded"


def test_openai_streams_end_whole_too_and_after_the_grace_period_what_runs_ends_with_a_code(
    start: Callable[..., CogUnderTest],
) -> None:
    (port,) = free_ports(1)
    server = start(OPENAI_PORT=str(port), STOP_GRACE_PERIOD="7")
    url = f"http://127.0.0.1:{port}/v1/completions"
    answers: dict[int, httpx.Response] = {}

    def ask(max_tokens: int) -> None:
        body = {"model": "paced", "prompt": QUESTION, "max_tokens": max_tokens}
        answers[max_tokens] = httpx.post(url, json=body, timeout=DEADLINE_S)

    short = 3 * TOKENS_PER_SECOND
    running = begun(server, 3000)
    threads = [threading.Thread(target=ask, args=(count,)) for count in (short, 3000)]
    for thread in threads:
        thread.start()
    wait_until(lambda: server.counters.running == 1 + len(threads))
    terminate(server)

    def refused() -> httpx.Response | None:
        try:
            response = httpx.post(url, json={}, timeout=DEADLINE_S)
        except httpx.TransportError:
            return None
        return response if response.status_code == 503 else None

    rejected = wait_until(refused)
    assert rejected.headers["connection"] == "close"
    assert rejected.json()["error"]["code"] == "E2110"
    for thread in threads:
        thread.join()
    expected = server.model.expected_text(QUESTION, short)
    assert answers[short].json()["choices"][0]["text"] == expected
    assert answers[3000].status_code == 503
    assert answers[3000].json()["error"]["code"] == "E2110"
    answer = running.result(DEADLINE_S)
    assert answer["status"] == "failed"
    assert "E2110 ServerStopping" in answer["error"]
    assert exit_code(server) == 0
    assert not (server.metrics_dir.parent / "engine").exists(), "the engine server's socket"


def test_a_second_sigterm_ends_all_at_once(start: Callable[..., CogUnderTest]) -> None:
    server = start(STOP_GRACE_PERIOD="600")
    begun(server, 3000)
    pids = [*triton_pids(server.triton_http_port), *engine_pids(server.triton_http_port)]
    terminate(server)
    wait_until(lambda: server.server.health().get("status") == "UNHEALTHY")
    terminate(server)
    assert exit_code(server) == 128 + signal.SIGTERM
    wait_until(lambda: not any(map(is_running, pids)))
    assert shared_memory(server.triton_http_port) == []


_BROKEN = """
import socket, sys, threading

if "cog.server.http" in sys.orig_argv or "runner.cog_server" in sys.orig_argv:
    connect, start, failures = socket.create_connection, threading.Thread.start, []

    def failing_once(*arguments, **named):
        if failures:
            return connect(*arguments, **named)
        failures.append(None)
        raise OSError("no connection, this once")

    def failing(thread):
        if thread.name == "reject":
            raise RuntimeError("can't start new thread")
        start(thread)

    socket.create_connection, threading.Thread.start = failing_once, failing
"""


def test_errors_of_the_shutdowns_own_steps_lose_no_request(
    start: Callable[..., CogUnderTest], tmp_path: Path
) -> None:
    """No connection and no thread can be had: the running request ends whole, and the log says why."""
    patches = tmp_path / "patches"
    patches.mkdir()
    (patches / "sitecustomize.py").write_text(_BROKEN)
    server = start(PYTHONPATH=f"{patches}:{SOURCE_ROOT}")
    wait_until(lambda: "graceful shutdown: OSError: no connection, this once" in server.log())
    running = begun(server, 2 * TOKENS_PER_SECOND)
    terminate(server)
    answer = running.result(DEADLINE_S)
    assert answer["status"] == "succeeded"
    assert exit_code(server) == 0
    assert "graceful shutdown: RuntimeError: can't start new thread" in server.log()
    assert "Traceback" not in server.log()


def test_while_it_starts_it_stops_at_once(model: PacedModel, tmp_path: Path) -> None:
    server = CogUnderTest(model, tmp_path, wait=False, COG_TRITON_FAULTS="slow_start=60")
    wait_until(lambda: engine_pids(server.triton_http_port))
    terminate(server)
    exit_code(server)
    wait_until(lambda: not engine_pids(server.triton_http_port))
    server.close()
    assert shared_memory(server.triton_http_port) == []


def test_too_many_failures_end_the_server_with_an_error(start: Callable[..., CogUnderTest]) -> None:
    server = start(FAILURE_LIMIT="1")
    for pid in engine_pids(server.triton_http_port):
        os.kill(pid, signal.SIGKILL)
    assert exit_code(server) == UNRECOVERABLE_EXIT_CODE
    assert "giving up" in server.log()
    wait_until(lambda: shared_memory(server.triton_http_port) == [])


def cog_worker(server: CogUnderTest) -> int:
    threads = Path(f"/proc/{server.server.pid}/task").glob("*/children")
    (child,) = [int(pid) for path in threads for pid in path.read_text().split()]
    return child


def test_a_stopped_cog_worker_is_not_ready_and_ends_the_server_with_an_error(
    start: Callable[..., CogUnderTest],
) -> None:
    server = start()
    pids = [*triton_pids(server.triton_http_port), *engine_pids(server.triton_http_port)]
    os.kill(cog_worker(server), signal.SIGSTOP)
    assert ask(server.port, "ready").returncode == 1
    assert exit_code(server) == UNRECOVERABLE_EXIT_CODE
    assert "Cog's worker can't go on and is killed: it was stopped (SIGSTOP)" in server.log()
    wait_until(lambda: not any(map(is_running, pids)))
