"""The process of the API server. ``runner.api.supervisor`` starts it."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
import sys

import uvicorn

from engine.directory import load
from engine.kinds import LORA_FOLDER, supports
from errors.coded_error import CodedError
from errors.wire import ExitReason
from runner.api.application import API, make_application
from runner.api.call import GENERATION_PATHS, Call
from runner.api.call_observer import CallObserver
from runner.api.served import Served
from runner.api.start import Start
from runner.engines.protocol.client import EngineClient
from runner.generation.admission import RequestGuard
from runner.generation.generation import Generation
from runner.generation.model import load_model_facts
from runner.generation.request import GenerationRequest
from runner.observability.logs import JSON, set_up_logging
from runner.observability.meter import Meter, RequestMeter
from runner.observability.tracing import Tracing, open_tracing
from runner.supervision.flight_recorder import RequestShapes
from runner.supervision.tuning import freeze_loaded_objects
from runner.triton_server.client import TritonClient

_KEEP_ALIVE_S = 75
"""Longer than clients and proxies keep an idle connection: a client must not send on one that we close."""
_FINAL_RESPONSES_S = 3
"""After the grace period, for the errors of requests that it ended."""

_FLUSH_S = 1.0
"""For the last spans, even if the collector does not answer."""


class Server(uvicorn.Server):
    """Shuts down gracefully: running requests may end within the grace period; then they get E2110."""

    def __init__(
        self, config: uvicorn.Config, requests: RequestGuard, grace_s: float, tracing: Tracing | None
    ) -> None:
        super().__init__(config)
        self._tracing = tracing
        self._requests = requests
        self._grace_s = grace_s

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._requests.refuse("it was asked to")
        reason = f"it was asked to, and the grace period of {self._grace_s:g} s is over"
        timer = asyncio.get_running_loop().call_later(self._grace_s, self._requests.end_all, reason)
        await super().shutdown(sockets)
        timer.cancel()
        if self._tracing is not None:
            # NOTE: not in an exit handler: uvicorn ends the process by the signal that it received.
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(asyncio.to_thread(self._tracing.flush), _FLUSH_S)


async def serve(start: Start) -> None:
    """Serve until SIGTERM. Raises a CodedError if the model can't be read."""
    settings = start.settings
    engine = load(settings.engine_dir)
    model = load_model_facts(engine, settings)
    model.chat.check()
    names = settings.openai_models or (engine.manifest.model_id or engine.manifest.engine_kind,)
    has_adapters = supports(engine.manifest.engine_kind, "lora_name")
    adapters = sorted(path.name for path in (engine.path / LORA_FOLDER).glob("*")) if has_adapters else ()
    served = Served(model, settings, engine.manifest.engine_kind, names, tuple(adapters))
    meter = Meter("openai", start.metrics_dir)
    is_log_json = settings.log_format == JSON
    set_up_logging(settings.log_format)
    tracing = open_tracing(settings.otlp_traces_url, settings.service_name, names[0])
    shapes = RequestShapes("openai", start.shapes_path)
    kind, timeout_s = engine.manifest.engine_kind, settings.triton_timeout_s
    client = (
        TritonClient(settings.triton_url, timeout_s)
        if start.engine_socket is None
        else EngineClient(start.engine_socket, timeout_s, kind)
    )
    async with client:
        requests = RequestGuard(client, shapes)

        def generate(request: GenerationRequest, call: Call) -> Generation:
            trace = None
            if tracing is not None:
                operation = GENERATION_PATHS[call.path]
                trace = tracing.begin(
                    request.traced(), operation=operation, response_id=call.response_id, model=call.model
                )
            return Generation(
                request,
                model,
                requests,
                measures_phases=trace is not None and trace.is_recording,
                trace=trace,
                logged_api="openai" if is_log_json else "",
                request_id=call.request_id,
                meter=RequestMeter(meter),
            )

        application = make_application(API(served, client.is_answering, generate, start.metrics_dir), served)
        config = uvicorn.Config(
            CallObserver(application, meter, is_log_json=is_log_json, tracing=tracing),
            http="httptools",
            lifespan="off",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=math.ceil(settings.stop_grace_s + _FINAL_RESPONSES_S),
        )
        freeze_loaded_objects()
        await requests.wait_for_engine()  # The first clients may be waiting already.
        server = Server(config, requests, settings.stop_grace_s, tracing)
        await server.serve(sockets=[socket.socket(fileno=start.socket_fd)])


def main() -> int:
    start = Start.model_validate_json(sys.stdin.read())
    try:
        asyncio.run(serve(start))
    except CodedError as exc:
        ExitReason(start.exit_reason_fd).write(exc)
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
