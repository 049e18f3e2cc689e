"""Endpoints for administrators, as vLLM has them: LoRA adapters while the engine serves, sleep and wake."""

from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, cast

import msgspec
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from engine.adapters import NAMES
from engine.kinds import Capability
from errors.api import AdminKeyNotSet, InvalidAdminKey
from errors.requests import AdapterRefused, InvalidInput
from runner.api.admin.bodies import LoadAdapterBody, Sleeping, SleepState, UnloadAdapterBody, WakeState
from runner.api.body_reader import BodyReader
from runner.api.call import call_of
from runner.api.limits import run_within
from runner.api.middleware.keys import ADMIN_PATHS, find_key
from runner.api.served import Served
from runner.engines.protocol.checks import check_orders
from runner.engines.protocol.messages import LoadAdapter, Order, Sleep, SleepMode, UnloadAdapter, WakeUp
from runner.settings.api_keys import APIKeys

GiveOrder = Callable[[Order], Coroutine[Any, Any, None]]
"""Function that has the engine carry out an order."""
_LEVELS = {"1": 1, "2": 2}
_MODES: tuple[SleepMode, ...] = ("abort", "wait")
_TAGS = ("weights", "kv_cache")
_NO_ID = 0
Endpoint = Callable[[Request], Awaitable[Response]]


class Admin:
    """The endpoints. Each needs one of ADMIN_API_KEYS, and an engine kind that can do it."""

    def __init__(self, served: Served, bodies: BodyReader, give: GiveOrder | None) -> None:
        self._served = served
        self._bodies = bodies
        self._give = give
        self._keys = APIKeys(served.settings.admin_api_keys)

    def routes(self) -> list[Route]:
        endpoints: dict[str, tuple[str, Capability, Endpoint]] = {
            "/v1/load_lora_adapter": ("POST", "load_adapter", self.load_adapter),
            "/v1/unload_lora_adapter": ("POST", "load_adapter", self.unload_adapter),
            "/sleep": ("POST", "sleep", self.sleep),
            "/wake_up": ("POST", "sleep", self.wake_up),
            "/is_sleeping": ("GET", "sleep", self.is_sleeping),
        }
        assert endpoints.keys() == set(ADMIN_PATHS)
        return [
            Route(path, self._checked(capability, endpoint), methods=[method])
            for path, (method, capability, endpoint) in endpoints.items()
        ]

    def _checked(self, capability: Capability, endpoint: Endpoint) -> Endpoint:
        async def check(request: Request) -> Response:
            path = request.scope["path"]
            if not self._served.settings.admin_api_keys:
                raise AdminKeyNotSet(path=path)
            if find_key(request.scope, self._keys) is None:
                raise InvalidAdminKey(path=path)
            check_orders(self._served.engine_kind, capability)
            return await endpoint(request)

        return check

    async def load_adapter(self, request: Request) -> Response:
        body = await self._bodies.read(request, LoadAdapterBody)
        name = body.lora_name
        if name in self._served.names or name in self._served.adapters:
            reason = "the engine has a model of that name; choose another"
            raise AdapterRefused(adapter=name, reason=reason)
        path = allowed_folder(name, body.lora_path, self._served.settings.lora_dirs)
        order = LoadAdapter(_NO_ID, name, str(path), body.digest or "", bool(body.load_inplace))
        await self._carry_out(order, request)
        return PlainTextResponse(f"Success: LoRA adapter '{name}' added successfully.")

    async def unload_adapter(self, request: Request) -> Response:
        body = await self._bodies.read(request, UnloadAdapterBody)
        await self._carry_out(UnloadAdapter(_NO_ID, body.lora_name), request)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    async def sleep(self, request: Request) -> Response:
        level = _one_of(request, "level", tuple(_LEVELS))
        mode = cast(SleepMode, _one_of(request, "mode", _MODES))
        await self._carry_out(Sleep(_NO_ID, _LEVELS[level], mode), request)
        return _json(SleepState("sleeping", _LEVELS[level]))

    async def wake_up(self, request: Request) -> Response:
        tags = request.query_params.getlist("tags")
        if unknown := [tag for tag in tags if tag not in _TAGS]:
            raise InvalidInput(name="tags", expected=" or ".join(_TAGS), value=unknown[0])
        await self._carry_out(WakeUp(_NO_ID, tags), request)
        status = "sleeping" if self._served.engine.is_asleep else "awake"
        return _json(WakeState(status, tags or None))

    async def is_sleeping(self, request: Request) -> Response:
        return _json(Sleeping(self._served.engine.is_asleep))

    async def _carry_out(self, order: Order, request: Request) -> None:
        assert self._give is not None, "kinds that take orders have an engine server"
        timeout_s = self._served.settings.openai_timeout_s
        await run_within(self._give(order), call_of(request.scope), timeout_s)


def allowed_folder(name: str, path: str, allowed: tuple[Path, ...]) -> Path:
    """Return the folder that ``path`` names, links followed, inside an allowed one. Raises E1014."""
    for root in map(Path.resolve, allowed):
        try:
            folder = (root / path).resolve()
            found = [(folder / file).resolve() for file in NAMES]
            if all(each.is_relative_to(root) and each.is_file() for each in found):
                return folder
        except (OSError, ValueError, RuntimeError):  # Too long, a null character, links in a circle.
            continue
    reason = f"{' and '.join(NAMES)} are not in a folder {path!r} inside one of LORA_DIRS"
    raise AdapterRefused(adapter=name, reason=reason if allowed else "LORA_DIRS is not set")


def _one_of(request: Request, name: str, values: tuple[str, ...]) -> str:
    """Return a query parameter; the first value is the default."""
    given = request.query_params.get(name, values[0])
    if given not in values:
        raise InvalidInput(name=name, expected=" or ".join(values), value=given)
    return given


def _json(document: object) -> Response:
    return Response(msgspec.json.encode(document), media_type="application/json")
