"""The engine's LoRA adapters: those that it carries, and those that are loaded while it serves."""

from __future__ import annotations

import itertools
import logging
import threading
from collections.abc import Callable, Container
from contextlib import suppress
from pathlib import Path
from typing import Protocol

from engine.adapters import adapter_rank, digest_of
from errors.coded_error import CodedError
from errors.requests import AdapterRefused, InvalidTensor, UnknownAdapter
from runner.engines.protocol.messages import LoadAdapter
from runner.engines.vllm.interface import LoRARequest

log = logging.getLogger("cog_triton.engine")


class Core(Protocol):
    """The part of vLLM's client that adapters need. Its errors are coded."""

    def add_lora(self, lora_request: LoRARequest) -> bool: ...

    def remove_lora(self, lora_id: int) -> bool: ...


class Adapters:
    """Adapters by name.

    vLLM keeps each loaded one in the host's memory until it is removed, because there are never more than
    ``limit``. An adapter has a number and a name with its digest that no other one ever has: prefixes of
    prompts that vLLM has computed with another adapter of that name are not used for it.
    """

    def __init__(self, folder: Path, limit: int = 0, max_rank: int = 0) -> None:
        """Initialize. ``folder``: of the adapters that the engine carries; may be absent."""
        self._numbers = itertools.count(1)
        self._carried = {
            path.name: LoRARequest(lora_name=path.name, lora_int_id=next(self._numbers), lora_path=str(path))
            for path in sorted(folder.glob("*"))
        }
        self.limit = limit
        self._max_rank = max_rank
        self._loaded: dict[str, LoRARequest] = {}
        self._digests: dict[str, str] = {}
        self._unloaded: list[LoRARequest] = []
        """Adapters that vLLM still holds, for requests that use them."""
        self.lock = threading.Lock()
        """Lock of finding an adapter until its request counts as running."""

    def find(self, name: str) -> LoRARequest:
        """Find vLLM's request for the adapter. Raises InvalidTensor for one that the engine lacks."""
        found = self._carried.get(name) or self._loaded.get(name)
        if found is None:
            known = ", ".join((*self._carried, *self._loaded)) or "none"
            raise InvalidTensor(
                name="lora_name", expected=f"an adapter of this engine ({known}) or empty", value=name
            )
        return found

    def load(self, order: LoadAdapter, core: Core, used: Callable[[], Container[int]]) -> dict[str, str]:
        """Load an adapter and return the digests by name. ``used``: numbers of those that requests use.

        Raises E1014, and the core's errors.
        """
        name, folder = order.name, Path(order.path)
        if name in self._carried or (name in self._loaded and not order.replaces):
            raise _refused(name, "it is loaded already; unload it, or set load_inplace")
        self._remove_unused(core, used)
        held = len(self._carried) + len(self._loaded) + len(self._unloaded)
        if held >= self.limit:
            reason = (
                f"the engine holds {held} of {self.limit} adapters; unload one and wait for its requests, "
                "or raise max_cpu_loras in vllm: of the build config"
            )
            raise _refused(name, reason)
        if (rank := adapter_rank(name, folder)) > self._max_rank:
            reason = f"its rank is {rank}, and max_lora_rank in vllm: of the build config is {self._max_rank}"
            raise _refused(name, reason)
        digest = _digest(name, folder)
        if order.digest not in ("", digest):
            raise _refused(name, f"its digest is {digest}, not {order.digest}")
        request = LoRARequest(
            lora_name=f"{name}@{digest}", lora_int_id=next(self._numbers), lora_path=str(folder)
        )
        self._add(name, request, core)
        with self.lock:
            if (replaced := self._loaded.get(name)) is not None:
                self._unloaded.append(replaced)
            self._loaded[name], self._digests[name] = request, digest
        self._remove_unused(core, used)
        return dict(self._digests)

    def unload(self, name: str, core: Core, used: Callable[[], Container[int]]) -> dict[str, str]:
        """Unload an adapter and return the digests of the others. Raises E1014, E1015."""
        if name in self._carried:
            raise _refused(name, "the engine carries it; only adapters that were loaded can be unloaded")
        with self.lock:
            if (request := self._loaded.pop(name, None)) is None:
                raise UnknownAdapter(adapter=name)
            del self._digests[name]
            self._unloaded.append(request)
        self._remove_unused(core, used)
        return dict(self._digests)

    def load_again(self, core: Core) -> dict[str, str]:
        """Load all into a core that has dropped them. Those that can't be loaded any more are unloaded."""
        for name, request in list(self._loaded.items()):
            try:
                self._add(name, request, core)
            except CodedError as exc:
                log.error("unloaded the LoRA adapter %s: %s", name, exc)
                with self.lock:
                    del self._loaded[name], self._digests[name]
        return dict(self._digests)

    def _add(self, name: str, request: LoRARequest, core: Core) -> None:
        """Have the core load the adapter, and remove it unless it is the one of that digest."""
        try:
            core.add_lora(request)
            if (digest := _digest(name, Path(request.lora_path))) != request.lora_name.rpartition("@")[2]:
                raise _refused(name, f"its files changed while they were read: its digest is now {digest}")
        except Exception:
            with suppress(Exception):  # It was not added.
                core.remove_lora(request.lora_int_id)
            raise

    def _remove_unused(self, core: Core, used: Callable[[], Container[int]]) -> None:
        with self.lock:
            in_use = used()
        for request in [each for each in self._unloaded if each.lora_int_id not in in_use]:
            core.remove_lora(request.lora_int_id)
            self._unloaded.remove(request)


def _digest(name: str, folder: Path) -> str:
    try:
        return digest_of(folder)
    except OSError as exc:
        raise _refused(name, f"its files can't be read ({exc.strerror or exc})") from exc


def _refused(name: str, reason: str) -> AdapterRefused:
    return AdapterRefused(adapter=name, reason=reason)
