"""The process that serves the OpenAI-compatible API: started by the runner, see ``runner.openai_server``."""

from __future__ import annotations

import asyncio
import gc
import socket
import sys

import uvicorn

from engine.directory import load
from errors.base import CodedError
from runner.generation import Generation, GenerationRequest
from runner.meter import Meter, RequestMeter
from runner.model_facts import load_model_facts
from runner.openai.application import API, make_application
from runner.openai.orders import Served
from runner.openai.start import Start
from runner.triton_client import TritonClient
from runner.triton_ports import local_url

_KEEP_ALIVE_S = 75
"""Longer than clients and proxies keep a connection that is not used: they close it, not we under them."""
_STOP_GRACE_S = 2


async def serve(start: Start) -> None:
    """Serve until SIGTERM. Raises a CodedError if the model can't be read."""
    settings = start.settings
    engine = load(settings.engine_dir)
    model = load_model_facts(engine, settings)
    model.chat.check()
    names = settings.openai_models or (engine.manifest.model_id or engine.manifest.engine_kind,)
    served = Served(model, settings, engine.manifest.engine_kind, names)
    meter = Meter("openai", start.metrics_dir)
    triton_url = local_url(settings.triton_host, settings.triton_http_port)
    async with TritonClient(triton_url, settings.triton_timeout_s) as client:

        def generate(request: GenerationRequest) -> Generation:
            request_meter = RequestMeter(meter)
            return Generation(request, model, client, is_slot_ours=start.is_slot_ours, meter=request_meter)

        config = uvicorn.Config(
            make_application(API(served, client, generate, start.metrics_dir), served),
            http="httptools",
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            timeout_graceful_shutdown=_STOP_GRACE_S,
        )
        gc.collect()
        gc.freeze()  # What was loaded lives as long as we do: no collection need look at it again.
        await uvicorn.Server(config).serve(sockets=[socket.socket(fileno=start.socket_fd)])


def main() -> int:
    try:
        asyncio.run(serve(Start.model_validate_json(sys.stdin.read())))
    except CodedError as exc:
        print(exc, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
