"""A worker of NVIDIA Dynamo: one more client of the engine server.

``runner.dynamo.supervisor`` starts it with the Python of Dynamo's environment. Dynamo's runtime, which is
native code, takes the requests of Dynamo's front ends. At SIGTERM it leaves discovery, lets running requests
end and ends the process.
"""

import asyncio
import os
import sys
from collections.abc import AsyncGenerator
from typing import Any

from dynamo._core import Context, Endpoint
from dynamo.common.backend import EngineConfig, LLMEngine, LlmRegistration, WorkerConfig
from dynamo.common.backend.publisher import ZmqSource
from dynamo.common.backend.run import run
from dynamo.common.utils.token_ids import normalize_request_token_ids
from dynamo.llm import ModelInput, ModelRuntimeConfig, ModelType, WorkerType, register_model, unregister_model
from dynamo.llm.exceptions import DynamoException, EngineShutdown, InvalidArgument, Unknown

from errors.coded_error import CodedError
from errors.engines import EngineAsleep, EngineCrashed, QueueFull, RankEnded, VllmEngineDied
from runner.dynamo.listeners import confine_listeners
from runner.dynamo.requests import chunk, submit_message
from runner.dynamo.start import DynamoStart
from runner.engines.protocol.client import EngineClient, EngineOutputs
from runner.engines.protocol.coalescing import Coalescing
from runner.engines.protocol.messages import Ready
from runner.supervision.child import die_with_parent

_CHUNK_FACTOR = 8
"""Factor of ``Coalescing``. A chunk costs as much whether it has one token or twenty."""
_SWITCH_S = 0.001
"""Time for which the event loop keeps Python's lock while Dynamo's threads wait for it."""
_BLOCK_TOKENS = 16
"""Tokens of the blocks by which routers compare prompts, if the engine does not tell its own."""
_WATCH_S = 0.5
_FOLDER = "."
"""Path of the engine's folder, which is this process's.

NOTE: front ends reject a worker that registers a model of another path than the first worker's.
"""
_ELSEWHERE = (EngineAsleep, EngineCrashed, QueueFull, RankEnded, VllmEngineDied)
"""Errors after which the front end goes on with the request on another worker."""


class DynamoEngine(LLMEngine):  # type: ignore[misc]
    """The engine server, as Dynamo's runtime sees it."""

    def __init__(self, start: DynamoStart) -> None:
        self._start = start
        self._client = EngineClient(
            start.engine_socket,
            start.timeout_s,
            start.engine_kind,
            Coalescing(_CHUNK_FACTOR),
            on_ready=self._take_ready,
        )
        self._is_loaded = asyncio.Event()
        self._ready: Ready
        self._loaded_adapters: frozenset[str] = frozenset()
        self._registered: frozenset[str] = frozenset()
        """LoRA adapters that front ends know."""
        self._running: dict[str, EngineOutputs] = {}
        self._watching: asyncio.Task[None] | None = None

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> "tuple[DynamoEngine, WorkerConfig]":
        """Read the message on standard input, in place of arguments."""
        start = DynamoStart.decode(sys.stdin.buffer.read())
        os.chdir(start.engine_dir)
        config = WorkerConfig(
            namespace=os.environ.get("DYN_NAMESPACE", "dynamo"),
            component=os.environ.get("DYN_COMPONENT", "cog_triton"),
            endpoint=os.environ.get("DYN_ENDPOINT", "generate"),
            model_name=_FOLDER,
            served_model_name=start.names[0],
            endpoint_types="chat,completions" if start.has_chat else "completions",
            custom_jinja_template=str(start.chat_template) if start.chat_template else None,
            discovery_backend=start.discovery,
            event_plane=os.environ.get("DYN_EVENT_PLANE", "zmq"),
            tool_call_parser=os.environ.get("DYN_TOOL_CALL_PARSER"),
            reasoning_parser=os.environ.get("DYN_REASONING_PARSER"),
        )
        return cls(start), config

    async def start(self, worker_id: int) -> EngineConfig:
        await self._client.__aenter__()
        await self._is_loaded.wait()
        start = self._start
        registration = LlmRegistration(
            context_length=start.max_sequence_length,
            kv_cache_block_size=self._block_tokens,
            total_kv_blocks=self._ready.num_kv_blocks or None,
        )
        name, *aliases = start.names
        return EngineConfig(model=_FOLDER, served_model_name=name, model_aliases=aliases, llm=registration)

    async def kv_event_sources(self) -> list[ZmqSource]:
        return [] if self._start.kv_events is None else [ZmqSource(*self._start.kv_events)]

    async def on_endpoint_ready(self, endpoint: Endpoint) -> None:
        confine_listeners(self._start.host)
        self._watching = asyncio.create_task(self._watch(endpoint), name="dynamo-watch")

    async def generate(
        self, request: dict[str, Any], context: Context
    ) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the outputs of a request. Raises Dynamo's errors, whose text has our code."""
        request_id = context.id()
        try:
            normalize_request_token_ids(request)
            model = request.get("model")
            submit = submit_message(request, self._start, model if model in self._adapters else None)
            outputs = self._client.generate(submit)
            self._running[request_id] = outputs
            num_tokens, cached_tokens = 0, None
            try:
                async for output in outputs:
                    num_tokens += len(output.tokens)
                    if output.cached_tokens is not None:
                        cached_tokens = output.cached_tokens
                    yield chunk(output, len(submit.input_ids), num_tokens, cached_tokens)
            finally:
                self._running.pop(request_id, None)
                await outputs.aclose()
        except CodedError as exc:
            raise _dynamo_error(exc) from exc

    async def abort(self, context: Context) -> None:
        """Cancel a request: its client has disconnected, or its text has reached a stop text."""
        if (outputs := self._running.get(context.id())) is not None:
            outputs.cancel()

    def supported_controls(self) -> set[str]:
        return {"heartbeat"}

    async def engine_control(self, control: str, body: dict[str, Any]) -> dict[str, Any]:
        """Answer the supervisor's heartbeat, in the event loop that serves requests."""
        return {"status": "ok"}

    async def cleanup(self) -> None:
        watching, self._watching = self._watching, None
        if watching is not None:
            watching.cancel()
            await self._client.__aexit__()

    @property
    def _block_tokens(self) -> int:
        return self._ready.kv_block_tokens or _BLOCK_TOKENS

    @property
    def _adapters(self) -> frozenset[str]:
        return self._loaded_adapters.union(self._start.adapters)

    def _take_ready(self, ready: Ready) -> None:
        self._ready = ready
        self._loaded_adapters = frozenset(ready.adapters)
        self._is_loaded.set()

    async def _watch(self, endpoint: Endpoint) -> None:
        """Leave discovery while the engine is away or asleep, and keep its LoRA adapters registered."""
        is_listed = True
        while True:
            await asyncio.sleep(_WATCH_S)
            confine_listeners(self._start.host)
            try:
                is_serving = self._client.is_ready and not self._client.is_asleep
                if is_serving and not is_listed:
                    await endpoint.register_endpoint_instance()
                elif is_listed and not is_serving:
                    await endpoint.unregister_endpoint_instance()
                is_listed = is_serving
                if is_serving:
                    await self._register_adapters(endpoint)
            except Exception as exc:  # noqa: BLE001 - discovery may be away: the next round tries again
                print(f"discovery: {type(exc).__name__}: {exc}", flush=True)

    async def _register_adapters(self, endpoint: Endpoint) -> None:
        wanted, completions = self._adapters, ModelType.Completions
        for name in self._registered - wanted:
            await unregister_model(endpoint=endpoint, lora_name=name)
            self._registered -= {name}
        for name in wanted - self._registered:
            config = ModelRuntimeConfig()
            config.context_length = self._start.max_sequence_length
            await register_model(
                model_input=ModelInput.Tokens,
                model_type=ModelType.Chat | completions if self._start.has_chat else completions,
                endpoint=endpoint,
                model_path=_FOLDER,
                base_model_path=_FOLDER,
                lora_name=name,
                worker_type=WorkerType.Aggregated,
                kv_cache_block_size=self._block_tokens,
                runtime_config=config,
                ignore_weights=True,
            )
            self._registered |= {name}


def _dynamo_error(error: CodedError) -> DynamoException:
    """Return Dynamo's error: 400 for the caller's, another worker for a lost engine, else 500."""
    if isinstance(error, _ELSEWHERE):
        return EngineShutdown(str(error))
    return InvalidArgument(str(error)) if error.code.startswith("E1") else Unknown(str(error))


def main() -> int:
    die_with_parent()
    sys.setswitchinterval(_SWITCH_S)
    try:
        run(DynamoEngine)
    except Exception as exc:  # noqa: BLE001 - of Dynamo's runtime; the supervisor reports the last lines
        print(f"{type(exc).__name__}: {exc}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    # NOTE: os._exit, because native threads of a runtime that could not start keep Python from ending.
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)
