"""A runner that is not the head of its engine: it holds ranks of the engine, and has neither Cog nor Triton.

It answers ``/health-check`` as Cog does, for ``runner.probe``. After SIGTERM it waits for the end of the
head, whose running requests need its ranks, for at most STOP_GRACE_PERIOD.
"""

import asyncio
import json
import signal
import sys
import tempfile
from collections.abc import Awaitable
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from engine.directory import Engine
from errors.coded_error import CodedError
from runner.engines.server.start import EngineStart
from runner.observability.logs import log_in
from runner.settings.ports import Listener, check_ports_free
from runner.settings.settings import Settings, load_settings
from runner.stack.follower.supervisor import Node
from runner.stack.served_engine import open_served_engine
from runner.supervision.child import Log, cancelled, within
from runner.supervision.failures import FailureLog, FailureReport
from runner.supervision.supervised import ProcessState
from runner.triton_server.model_repository import render

_FAILED, _WRONG_INPUT, _UNRECOVERABLE = 1, 2, 70
"""Exit codes."""
_REQUEST_S = 5.0
_STATUS = {ProcessState.STARTING: "STARTING", ProcessState.READY: "READY"}
"""Cog's words; UNHEALTHY in all other states."""


def main(host: str) -> None:
    """Run in an image, by the environment's settings, and end the process."""
    try:
        sys.exit(follow(load_settings(), host))
    except CodedError as exc:
        log_in(None)(str(exc))
        sys.exit(_WRONG_INPUT if exc.code.startswith("E1") else _FAILED)


def follow(settings: Settings, host: str) -> int:
    """Hold this node's ranks until SIGTERM or Ctrl-C. Return an exit code. Raises a CodedError."""
    log = log_in(settings.log_format)
    check_ports_free(Listener(host, settings.cog.port, "the health check", "PORT"))
    engine = open_served_engine(settings, lambda engine: None, lambda *progress: None, log)
    return asyncio.run(_follow(settings, host, engine, log))


async def _follow(settings: Settings, host: str, engine: Engine, log: Log) -> int:
    unrecoverable, stopped = asyncio.Event(), asyncio.Event()
    node = _make_node(settings, engine, log, unrecoverable)
    server = await asyncio.start_server(partial(_answer, node), host, settings.cog.port)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    node.begin()
    async with server:
        try:
            await _first(node.wait_ready(), stopped.wait())
            log(f"node {settings.node_rank} of {settings.nodes}: {node.state.value}")
            await _first(unrecoverable.wait(), stopped.wait())
            await node.end_supervision()
            if stopped.is_set() and node.pid is not None:
                stopped.clear()
                log(f"stopping after the head, within {settings.stop_grace_s:g} s")
                await _first(node.child.exit_code(), stopped.wait(), asyncio.sleep(settings.stop_grace_s))
        finally:
            await node.stop()
    return _UNRECOVERABLE if unrecoverable.is_set() else 0


def _make_node(settings: Settings, engine: Engine, log: Log, unrecoverable: asyncio.Event) -> Node:
    with tempfile.TemporaryDirectory(prefix="cog-triton-node-") as folder:
        rendered = render(  # For the engine's options: there is no Triton.
            engine,
            Path(folder) / "models",
            overrides=settings.server,
            engine_cache_dir=settings.engine_cache_dir,
        )
    start = EngineStart(
        engine_kind=engine.manifest.engine_kind,
        engine_dir=engine.path,
        options={**rendered.options, **settings.node_options(rendered.start_timeout_s)},
        arrival=engine.path,
    )
    report = FailureReport(settings.log_format, lambda: {"node_rank": settings.node_rank})
    limits = settings.failure_limit, settings.failure_window_s
    failures = FailureLog(report.line, *limits, log, unrecoverable)
    timeout_s = settings.engine_start_timeout_s(rendered.start_timeout_s)
    return Node(settings.engine_python, start, log, failures.add, start_timeout_s=timeout_s)


async def _answer(node: Node, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer a request, whatever it asks for, with the node's status."""
    errors = OSError, EOFError, asyncio.LimitOverrunError, asyncio.TimeoutError
    with closing(writer), suppress(*errors):
        await within(reader.readuntil(b"\r\n\r\n"), _REQUEST_S)
        status = "200 OK" if node.is_serving else "503 Service Unavailable"
        body = json.dumps({"status": _STATUS.get(node.state, "UNHEALTHY")})
        head = f"HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n"
        writer.write(f"{head}Connection: close\r\n\r\n{body}".encode())
        await writer.drain()


async def _first(*awaitables: Awaitable[object]) -> None:
    """Wait until one of them is done, and cancel the others. Raises what it raised."""
    tasks = [asyncio.ensure_future(each) for each in awaitables]
    done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for each in pending:
        await cancelled(each)
    for each in done:
        each.result()
