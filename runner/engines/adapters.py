"""The engine's LoRA adapters: those that it carries, and those that are loaded while it serves."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Collection, Container
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from engine.adapters import adapter_shape, digest_of
from errors.requests import AdapterRefused, InvalidTensor, UnknownAdapter
from runner.engines.protocol.messages import LoadAdapter

log = logging.getLogger("cog_triton.engine")


class LoraRequest(Protocol):
    """The library's request for an adapter: vLLM and TensorRT-LLM have the same fields."""

    lora_name: str
    lora_int_id: int
    lora_path: str


class Core(Protocol):
    """The part of the library that adapters need. Its errors are coded."""

    def add_lora(self, lora_request: LoraRequest) -> object: ...

    def remove_lora(self, lora_id: int) -> object: ...


class Running(Protocol):
    """A running request."""

    lora: LoraRequest | None
    lora_name: str | None
    """Name by which the client knows the adapter."""
    has_begun: bool


class Adapters:
    """Adapters by name.

    The library keeps each loaded one until it is removed, because there are never more than ``limit``. An
    adapter has a number and a name with its digest that no other one ever has: prefixes of prompts that the
    library has computed with another adapter of that name are not used for it. One that is loaded again has
    them again, as some versions of TensorRT-LLM keep GPU memory for each number.
    """

    def __init__(
        self,
        make: Callable[..., LoraRequest],
        folder: Path,
        keys: str,
        limit: int = 0,
        max_rank: int = 0,
        modules: Container[str] | None = None,
    ) -> None:
        """Initialize.

        ``make``: the library's class. ``folder``: the adapters that the engine carries; it may be absent.
        ``keys``: the place of the limits in the build config, for errors. ``modules``: the model's modules
        that an adapter may change, by Hugging Face's names; None: any.
        """
        self._make = make
        self._keys = keys
        self._numbers = itertools.count(1)
        self.carried = {path.name: self._request(path.name, path) for path in sorted(folder.glob("*"))}
        """The library's requests for those that the engine carries, by name."""
        self.limit = limit
        self._max_rank = max_rank
        self._modules = modules
        self._loaded: dict[str, LoraRequest] = {}
        self._digests: dict[str, str] = {}
        self._unloaded: list[LoraRequest] = []
        """Adapters that the library still holds, for requests that use them."""
        self._removed: dict[tuple[str, str], LoraRequest] = {}
        """Adapters that were removed, by name with digest, and path."""
        self.lock = threading.Lock()
        """Lock of finding an adapter until its request counts as running."""

    def find(self, name: str) -> LoraRequest:
        """Return the library's request for the adapter. Raises E1103 if the engine does not have it."""
        found = self.carried.get(name) or self._loaded.get(name)
        if found is None:
            known = ", ".join((*self.carried, *self._loaded)) or "none"
            raise InvalidTensor(
                name="lora_name", expected=f"an adapter of this engine ({known}) or empty", value=name
            )
        return found

    def load(self, order: LoadAdapter, core: Core, running: Collection[Running]) -> dict[str, str]:
        """Load an adapter and return the digests by name. ``running``: the requests, read as often as needed.

        Raises E1014, and the core's errors.
        """
        name, folder = order.name, Path(order.path)
        if name in self.carried or (name in self._loaded and not order.replaces):
            raise _refused(name, "it is loaded already; unload it, or set load_inplace")
        self._remove_unused(core, running)
        held = len(self.carried) + len(self._loaded) + len(self._unloaded)
        if held >= self.limit:
            reason = (
                f"the engine holds {held} of {self.limit} adapters; unload one and wait for its requests, "
                f"or raise max_cpu_loras in {self._keys} of the build config"
            )
            raise _refused(name, reason)
        rank, modules = adapter_shape(name, folder)
        if rank > self._max_rank:
            limit = f"max_lora_rank in {self._keys} of the build config is {self._max_rank}"
            raise _refused(name, f"its rank is {rank}, and {limit}")
        allowed = self._modules
        if allowed is not None and (modules is None or any(each not in allowed for each in modules)):
            listed = "no module by name" if modules is None else ", ".join(modules)
            reason = f"it changes {listed}; name all of them in lora_target_modules in {self._keys}"
            raise _refused(name, f"{reason} of the build config")
        digest = _digest(name, folder)
        if order.digest not in ("", digest):
            raise _refused(name, f"its digest is {digest}, not {order.digest}")
        full_name = f"{name}@{digest}"
        request = self._removed.pop((full_name, str(folder)), None) or self._request(full_name, folder)
        self._add(name, request, core)
        with self.lock:
            if (replaced := self._loaded.get(name)) is not None:
                self._unloaded.append(replaced)
            self._loaded[name], self._digests[name] = request, digest
        self._remove_unused(core, running)
        return dict(self._digests)

    def unload(self, name: str, core: Core, running: Collection[Running]) -> dict[str, str]:
        """Unload an adapter and return the digests of the others. Raises E1014, E1015."""
        if name in self.carried:
            raise _refused(name, "the engine carries it; only adapters that were loaded can be unloaded")
        with self.lock:
            if (request := self._loaded.pop(name, None)) is None:
                raise UnknownAdapter(adapter=name)
            del self._digests[name]
            self._unloaded.append(request)
        self._remove_unused(core, running)
        return dict(self._digests)

    def load_again(self, core: Core) -> dict[str, str]:
        """Load all into a core that has dropped them. Those that can't be loaded any more are unloaded.

        Raises the core's error for an adapter that the engine carries.
        """
        for request in self.carried.values():
            core.add_lora(request)
        for name, request in list(self._loaded.items()):
            try:
                self._add(name, request, core)
            except Exception as exc:  # noqa: BLE001 - of the library: a request would end the core
                log.error("unloaded the LoRA adapter %s: %s", name, exc)
                with self.lock:
                    del self._loaded[name], self._digests[name]
        return dict(self._digests)

    def by_state(self, running: Collection[Running]) -> tuple[list[str], list[str]]:
        """Return the names of adapters of requests that have begun, and of requests that wait."""
        requests = [each for each in list(running) if each.lora_name] if self.limit else []
        begun, waiting = (
            sorted({each.lora_name or "" for each in requests if each.has_begun is has_begun})
            for has_begun in (True, False)
        )
        return begun, waiting

    def _request(self, name: str, folder: Path) -> LoraRequest:
        return self._make(lora_name=name, lora_int_id=next(self._numbers), lora_path=str(folder))

    def _add(self, name: str, request: LoraRequest, core: Core) -> None:
        """Have the core load the adapter, and remove it unless it is the one of that digest."""
        try:
            core.add_lora(request)
            if (digest := _digest(name, Path(request.lora_path))) != request.lora_name.rpartition("@")[2]:
                raise _refused(name, f"its files changed while they were read: its digest is now {digest}")
        except Exception:
            with suppress(Exception):  # It was not added.
                core.remove_lora(request.lora_int_id)
            raise

    def _remove_unused(self, core: Core, running: Collection[Running]) -> None:
        with self.lock:
            in_use = {each.lora.lora_int_id for each in list(running) if each.lora is not None}
        for request in [each for each in self._unloaded if each.lora_int_id not in in_use]:
            core.remove_lora(request.lora_int_id)
            self._unloaded.remove(request)
            self._removed[request.lora_name, request.lora_path] = request


def _digest(name: str, folder: Path) -> str:
    try:
        return digest_of(folder)
    except OSError as exc:
        raise _refused(name, f"its files can't be read ({exc.strerror or exc})") from exc


def _refused(name: str, reason: str) -> AdapterRefused:
    return AdapterRefused(adapter=name, reason=reason)
