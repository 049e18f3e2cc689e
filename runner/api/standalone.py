"""The API server alone, in front of an external Triton, until SIGTERM or Ctrl-C."""

import asyncio
import signal
import time
from collections.abc import Callable

from engine.directory import Engine
from errors.api import OpenAIServerFailed
from errors.external_triton import ExternalTritonUnavailable
from runner.api.supervisor import APIServers
from runner.observability.meter import clear_folder
from runner.settings.paths import make_runtime_dir, metrics_dir
from runner.settings.settings import Settings
from runner.settings.triton_address import TritonAddress
from runner.supervision.child import Log
from runner.supervision.failures import FailureLog, FailureReport
from runner.triton_server.nvidia_client import NvidiaClient
from runner.triton_server.nvidia_model import NvidiaModel

_POLL_S = 0.2
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


async def wait_for_triton(
    place: TritonAddress, timeout_s: float, on_wait: Callable[[str], None]
) -> NvidiaModel:
    """Wait for a Triton that starts, and return its model. ``on_wait`` gets the reason of each wait.

    Raises E2113 after the time, and at once what waiting can't mend: E1006, E1108 and E1113.
    """
    client = NvidiaClient(place, timeout_s)
    deadline_s = time.monotonic() + timeout_s
    try:
        while True:
            try:
                return await client.find_model()
            except ExternalTritonUnavailable as exc:
                if time.monotonic() > deadline_s:
                    raise
                on_wait(str(exc.facts["reason"]))
                await asyncio.sleep(_POLL_S)
    finally:
        client.close()


async def serve_alone(
    settings: Settings, engine: Engine, place: TritonAddress, log: Log, on_ready: Callable[[], None]
) -> None:
    """Serve until a signal. Requests in progress then have STOP_GRACE_PERIOD to end. Raises a CodedError.

    ``engine``: the folder of the tokenizer.
    """
    # NOTE: its own port names the folder of its files, as there is no Triton of ours.
    port = settings.openai_port
    own = {"engine_dir": engine.path, "weights": None, "model_id": None}
    settings = settings.model_copy(
        update={**own, "triton_http_port": port, "triton_host": place.host}  # Its metrics are passed on.
    )
    make_runtime_dir(port)
    clear_folder(metrics_dir(port))
    unrecoverable = asyncio.Event()
    limit = settings.failure_limit, settings.failure_window_s
    facts = {"engine": engine.manifest.model_dump(mode="json", exclude={"files"})}
    report = FailureReport(settings.log_format, lambda: facts)
    failures = FailureLog(report.line, *limit, log, unrecoverable)
    server = APIServers(settings, None, place, log=log, on_failure=failures.add)
    server.begin()
    try:
        await _serve(server, unrecoverable, on_ready)
    finally:
        await server.stop()


async def _serve(server: APIServers, unrecoverable: asyncio.Event, on_ready: Callable[[], None]) -> None:
    loop, asked_to_stop = asyncio.get_running_loop(), asyncio.Event()
    for number in _SIGNALS:
        loop.add_signal_handler(number, asked_to_stop.set)
    ready = asyncio.create_task(server.wait_ready())
    stopping = asyncio.create_task(asked_to_stop.wait())
    failing = asyncio.create_task(unrecoverable.wait())
    try:
        await asyncio.wait([ready, stopping], return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            return
        ready.result()
        on_ready()
        await asyncio.wait([stopping, failing], return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            down = next(each for each in server.processes if each.down_reason is not None)
            raise OpenAIServerFailed(reason=down.down_reason, log_tail=down.child.last_lines())
        for number in _SIGNALS:
            loop.remove_signal_handler(number)  # The next one ends it at once.
        await server.drain()
    finally:
        for task in (ready, stopping, failing):
            task.cancel()
        await asyncio.gather(ready, stopping, failing, return_exceptions=True)
