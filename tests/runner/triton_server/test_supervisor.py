"""Triton that aborts while it starts. A stand-in for tritonserver: the real one aborts by chance."""

import asyncio
import os
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from errors.triton import StartFailed
from runner.triton_server import supervisor
from runner.triton_server.supervisor import TritonServer
from tests.runner.servers import HOST, free_ports

_PROGRAM = """
import http.server, os, pathlib, sys
starts, port, times, words = sys.argv[1:]
with open(starts, "a") as file:
    file.write("x")
if len(pathlib.Path(starts).read_text()) <= int(times):
    print(words, flush=True)
    {end}

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

http.server.HTTPServer(("127.0.0.1", int(port)), Handler).serve_forever()
"""
_LOCK = "terminate called after throwing an instance of 'boost::interprocess::lock_exception'"


def start(
    folder: Path,
    times: int,
    words: str,
    end: str = "os.abort()",
    start_timeout_s: float = 300.0,
    *,
    fails: bool = False,
) -> tuple[int, list[str]]:
    """Start a Triton that aborts ``times`` times, and wait for a failure after it if it ``fails``.

    Returns the number of its starts, and the log.
    """
    (port,) = free_ports(1)
    starts, log = folder / "starts", list[str]()
    command = SimpleNamespace(
        settings=SimpleNamespace(triton_start_timeout_s=start_timeout_s, triton_hang_timeout_s=300.0),
        ports=SimpleNamespace(http_url=f"http://{HOST}:{port}", metrics_url=f"http://{HOST}:{port}/metrics"),
        install=SimpleNamespace(environment=lambda: dict(os.environ)),
        shm_prefix="no-triton-has-this-",
        words=lambda: [
            sys.executable,
            "-c",
            _PROGRAM.replace("{end}", end),
            str(starts),
            str(port),
            str(times),
            words,
        ],
    )

    async def run() -> None:
        failed = asyncio.Event()
        triton = TritonServer(
            cast(Any, command),
            log.append,
            is_waiting=lambda: False,
            on_failure=lambda failure: failed.set() or False,
            on_restart=lambda: None,
            has_engine=False,
        )
        triton.begin()
        try:
            await triton.wait_ready()
            if fails:
                await failed.wait()
        finally:
            await triton.stop()

    asyncio.run(run())
    return len(starts.read_text()), log


def test_a_lock_that_triton_did_not_get_costs_a_second_start(tmp_path: Path) -> None:
    num_starts, log = start(tmp_path, 1, _LOCK)
    assert num_starts == 2
    assert any("is started once more" in line for line in log)


def test_a_triton_that_goes_on_loading_although_the_engine_is_ready_is_started_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_LOADED_S", 0.1)
    loading = 'I1 lifecycle.cc:472] "loading: preprocessing:1"'
    num_starts, log = start(tmp_path, 1, loading, end="import time; time.sleep(600)")
    assert num_starts == 2
    assert any("loading preprocessing" in line and "is started once more" in line for line in log)


def test_a_triton_that_goes_on_loading_a_second_time_is_an_error_that_names_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "_LOADED_S", 0.1)
    loading = 'I1 lifecycle.cc:472] "loading: preprocessing:1"'
    remedy = "while loading preprocessing for the second time: give it more processor time"
    with pytest.raises(StartFailed, match=remedy):
        start(tmp_path, 2, loading, end="import time; time.sleep(600)", start_timeout_s=5.0)


def test_there_is_no_third_start(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="lock_exception"):
        start(tmp_path, 5, _LOCK)
    assert (tmp_path / "starts").read_text() == "xx"


def test_another_end_is_an_error_at_once(tmp_path: Path) -> None:
    with pytest.raises(StartFailed, match="exit code 3"):
        start(tmp_path, 1, "no memory", end="os._exit(3)")
    assert (tmp_path / "starts").read_text() == "x"


_STUB = """pid = os.fork()
    if not pid:
        os.kill(os.getpid(), 9)
    import time; time.sleep(600)"""


def test_a_stub_that_ends_while_triton_waits_for_it_costs_a_second_start(tmp_path: Path) -> None:
    """Triton waits for ever for the first message of a stub."""
    num_starts, log = start(tmp_path, 1, "loading", _STUB)
    assert num_starts == 2
    assert any("ended (killed by SIGKILL)" in line and "is started once more" in line for line in log)


def test_a_stub_without_a_sign_of_life_in_time_costs_a_second_start(tmp_path: Path) -> None:
    words = "E1125 backend_model.cc] failed: Stub process 'preprocessing_0_0' is not healthy."
    assert start(tmp_path, 1, words, end="os._exit(1)")[0] == 2


def test_a_triton_that_crashed_and_prints_its_stack_for_ever_is_ended(tmp_path: Path) -> None:
    _, log = start(tmp_path, 1, "Signal (6) received.", end="pass", fails=True)
    assert "Triton can't go on: it crashed and did not end" in log


def test_a_start_that_takes_too_long_names_the_models_that_are_not_loaded_and_the_setting(
    tmp_path: Path,
) -> None:
    log = [f'1] "loading: {name}:1"' for name in ("preprocessing", "tensorrt_llm")]
    words = "\n".join([*log, "2] \"successfully loaded 'preprocessing'\""])
    expected = r"not within 5 s \(TRITON_START_TIMEOUT\), while loading tensorrt_llm\."
    with pytest.raises(StartFailed, match=expected):
        start(tmp_path, 1, words, end="__import__('time').sleep(600)", start_timeout_s=5.0)
