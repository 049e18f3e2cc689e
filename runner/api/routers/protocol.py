"""What routers ask of a model server, in vLLM's form: prompts as token ids, facts of the server, metrics.

It is offered only with ROUTER_PROTOCOL=vllm. docs/routers.md tells which router reads what.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from prometheus_client.metrics_core import Metric as Family
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from runner.api.call import RENDER, call_of
from runner.api.generation_response import GenerationResponse
from runner.api.openai.answers import Rendered
from runner.api.routers.metrics import router_families
from runner.api.served import Served
from runner.engines.protocol.messages import Ready, Statistics
from runner.generation.inputs import submit_message
from runner.generation.prompt_ids import PromptIds
from runner.generation.request import GenerationRequest
from runner.observability.meter import Reading

GeneratingEndpoint = Callable[[Request], Awaitable[GenerationResponse]]
Run = Callable[[Coroutine[Any, Any, Any], Request], Awaitable[Any]]
"""Function that runs the work of a call within this server's limits."""
_ONE_FOR_EACH = "/v1/completions"
"""Path whose calls may have several prompts, so that its answer is a list."""


class RouterProtocol:
    def __init__(self, served: Served, statistics: Callable[[], Statistics | None]) -> None:
        """Initialize. ``statistics`` returns the engine's last ones; None while they are not known."""
        self._served = served
        self._statistics = statistics

    def routes(self, endpoints: Mapping[str, GeneratingEndpoint], run: Run) -> list[Route]:
        """Return the routes. ``endpoints`` generate, by path; what they would generate from is rendered."""

        def rendering(path: str, generate: GeneratingEndpoint) -> Callable[[Request], Awaitable[Response]]:
            async def render(request: Request) -> Response:
                rendered = await run(self._render(await generate(request), request), request)
                return _json(rendered if path == _ONE_FOR_EACH else rendered[0])

            return render

        routes = [
            Route(path + RENDER, rendering(path, generate), methods=["POST"])
            for path, generate in endpoints.items()
        ]
        return [
            *routes,
            Route("/server_info", self.server_info, methods=["GET"]),
            Route("/kv_event_sources", self.kv_event_sources, methods=["GET"]),
        ]

    async def _render(self, response: GenerationResponse, request: Request) -> list[Rendered]:
        call = call_of(request.scope)
        rendered = []
        for own in [each.request for each in await response.prepare()]:
            ids = await self._input_ids(own)
            rendered.append(Rendered(call.request_id, ids, response.model, own.cache_salt, own.priority))
            await asyncio.sleep(0)  # Other calls have their turn.
        return rendered

    async def _input_ids(self, request: GenerationRequest) -> list[int]:
        """Return the ids that the engine would get. Raises E1002 and E1704."""
        model = self._served.model
        ids = PromptIds(request.prompt, adds_special_tokens=request.adds_special_tokens)
        return submit_message(request, model, await ids.get(model.tokenizing)).input_ids

    async def server_info(self, request: Request) -> Response:
        names, length = list(self._served.names), self._served.model.max_sequence_length
        ready = self._ready
        config = {
            "model_config": {"model": names[0], "served_model_name": names, "max_model_len": length},
            "cache_config": {"block_size": ready.kv_block_tokens, "num_gpu_blocks": ready.num_kv_blocks},
            "kv_events_config": self._served.settings.kv_events_config,
        }
        return _json({"vllm_config": config})

    async def kv_event_sources(self, request: Request) -> Response:
        """Answer where events of the KV cache are, by the number of the replica that publishes them."""
        config = self._served.settings.kv_events_config
        return _json({} if config is None else event_sources(config, self._ready.num_replicas))

    def families(self, readings: Sequence[Reading]) -> Iterable[Family]:
        return router_families(readings, self._served.names[0], self._ready, self._statistics())

    @property
    def _ready(self) -> Ready:
        kind, length = self._served.engine_kind, self._served.model.max_sequence_length
        return self._served.engine.ready or Ready(kind, 0, length, 0)


def event_sources(config: Mapping[str, Any], num_replicas: int) -> dict[str, dict[str, Any]]:
    """Return the ``kv_events_config`` of each replica: vLLM adds its number to the ports."""

    def own(endpoint: str | None, number: int) -> str | None:
        if endpoint is None or not number:
            return endpoint
        address, _, port = endpoint.rpartition(":")
        return f"{address}:{int(port) + number}"

    names = ("endpoint", "replay_endpoint")
    return {
        str(number): {**config, **{name: own(config[name], number) for name in names}}
        for number in range(num_replicas)
    }


def _json(document: object) -> Response:
    return Response(msgspec.json.encode(document), media_type="application/json")
