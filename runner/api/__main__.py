"""The process of the API server. ``runner.api.supervisor`` starts it."""

import asyncio
import socket
import sys
from typing import TYPE_CHECKING

from engine.adapters import NAMES, adapter_digest
from engine.directory import Engine, load
from engine.kinds import CPP_KIND, LORA_FOLDER, supports
from errors.coded_error import CodedError
from errors.wire import ExitReason
from runner.api.application import API
from runner.api.asgi import make_application
from runner.api.call import GENERATION_PATHS, Call
from runner.api.limits import TextLimit
from runner.api.middleware.call_observer import CallObserver
from runner.api.served import EngineState, Served
from runner.api.server import Server
from runner.api.start import APIStart
from runner.engines.protocol.client import EngineClient
from runner.engines.protocol.messages import Output, Submit
from runner.engines.protocol.outlet import Outlet, Outputs
from runner.generation.admission import Admission
from runner.generation.generation import Generation, TokenSource
from runner.generation.model import load_model_facts
from runner.generation.request import GenerationRequest
from runner.observability.logs import JSON, set_up_logging
from runner.observability.meter import Meter, RequestMeter
from runner.observability.tracing import open_tracing
from runner.supervision.tuning import freeze_loaded_objects

if TYPE_CHECKING:
    from runner.api.routers.protocol import RouterProtocol
    from runner.triton_server.nvidia_client import NvidiaClient

_SWITCH_S = 0.001
"""Time for which a thread that reads a large body keeps Python's lock while the event loop waits."""


class _Releasing:
    """The engine's tokens. A request that is sent for them has used its body."""

    def __init__(self, source: TokenSource, call: Call) -> None:
        self._source = source
        self._call = call

    def generate(self, submit: Submit, outlet: Outlet[Output] | None = None) -> Outputs:
        self._call.release()
        return self._source.generate(submit, outlet)


async def serve(start: APIStart) -> None:
    """Serve until SIGTERM. Raises a CodedError if the model can't be read."""
    settings = start.settings
    engine = load(settings.engine_dir)
    model = load_model_facts(engine, settings)
    model.chat.check()
    kind = CPP_KIND if start.triton is not None else engine.manifest.engine_kind
    names = settings.openai_models or (engine.manifest.model_id or kind,)
    served = Served(model, settings, kind, names, _adapters(engine) if supports(kind, "lora_name") else {})
    meter = Meter("openai", start.metrics_dir)
    is_log_json = settings.log_format == JSON
    set_up_logging(settings.log_format)
    tracing = open_tracing(settings.otlp_traces_url, settings.service_name, names[0])
    async with _client(start, kind, served.engine) as client:
        requests = Admission(client)

        def generate(request: GenerationRequest, call: Call) -> Generation:
            request = request.with_priority(settings.min_priority, call.api_key)
            trace = None
            if tracing is not None:
                operation = GENERATION_PATHS[call.path]
                trace = tracing.begin(
                    request.traced(), operation=operation, response_id=call.response_id, model=call.model
                )
            return Generation(
                request,
                model,
                _Releasing(requests, call),
                is_whole=call.is_whole,
                measures_phases=trace is not None and trace.is_recording,
                trace=trace,
                logged_api="openai" if is_log_json else "",
                request_id=call.request_id,
                meter=RequestMeter(meter),
            )

        text_limit = TextLimit(settings.openai_max_requests, start.texts_fd, start.number)
        give = client.order if isinstance(client, EngineClient) else None
        router = _router_protocol(served, client) if settings.router_protocol is not None else None
        api = API(served, client.is_answering, generate, start.metrics_dir, text_limit, give, router)
        application = make_application(api, served)
        observed = CallObserver(application, meter, is_log_json=is_log_json, tracing=tracing)
        freeze_loaded_objects()
        await requests.wait_for_engine()  # The first clients may be waiting already.
        others = [socket.socket(fileno=each) for each in start.others_fds]
        server = Server(observed, settings, requests, tracing, others)
        await server.serve([socket.socket(fileno=each) for each in start.socket_fds])


def _router_protocol(served: Served, client: "NvidiaClient | EngineClient") -> "RouterProtocol":
    from runner.api.routers.protocol import RouterProtocol  # Few servers have it.

    return RouterProtocol(served, client.statistics if isinstance(client, EngineClient) else lambda: None)


def _adapters(engine: Engine) -> dict[str, str | None]:
    """Return the digests of the LoRA adapters that the engine carries, by name."""
    digests: dict[str, str | None] = {}
    for path in sorted((engine.path / LORA_FOLDER).glob("*")):
        entries = [engine.manifest.files.get(f"{LORA_FOLDER}/{path.name}/{name}") for name in NAMES]
        files = {name: each.sha256 for name, each in zip(NAMES, entries, strict=True) if each and each.sha256}
        digests[path.name] = adapter_digest(files) if len(files) == len(NAMES) else None
    return digests


def _client(start: APIStart, kind: str, state: EngineState) -> "NvidiaClient | EngineClient":
    timeout_s = start.settings.triton_timeout_s
    if start.triton is not None:
        from runner.triton_server.nvidia_client import NvidiaClient  # gRPC's messages take time to import.

        return NvidiaClient(start.triton, timeout_s)
    assert start.engine_socket is not None, "there is a Triton or an engine server"
    return EngineClient(start.engine_socket, timeout_s, kind, on_ready=state.take)


def main() -> int:
    sys.setswitchinterval(_SWITCH_S)
    start = APIStart.model_validate_json(sys.stdin.read())
    try:
        asyncio.run(serve(start))
    except CodedError as exc:
        ExitReason(start.exit_reason_fd).write(exc)
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
