"""Orders to the engine itself: LoRA adapters to load and unload, to sleep and to wake."""

import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import msgspec

from errors.engines import EngineFailed, as_coded
from errors.wire import WireError
from runner.engines.protocol.adapter import EngineAdapter, OrderedAdapter
from runner.engines.protocol.checks import check_order
from runner.engines.protocol.messages import (
    Failed,
    Finished,
    LoadAdapter,
    Order,
    Sleep,
    UnloadAdapter,
    WakeUp,
)

log = logging.getLogger("cog_triton.engine")

Answer = Callable[[Finished | Failed], None]


class Orders:
    """Orders, carried out one after the other in a thread. ``on_change`` is called when ``engine.ready`` is
    another."""

    def __init__(self, engine: EngineAdapter, on_change: Callable[[], None]) -> None:
        self._engine = engine
        self._on_change = on_change
        self._thread = ThreadPoolExecutor(1, "orders")

    def give(self, order: Order, answer: Answer) -> None:
        """Have the order carried out. The clients know what it changed before its own gets the answer."""
        self._thread.submit(self._finish, order, answer)

    def _finish(self, order: Order, answer: Answer) -> None:
        try:
            check_order(order, self._engine.ready)
            self._carry_out(order)
            answer(Finished(order.request_id, "end"))
        except Exception as exc:  # Whatever a library raises, the engine goes on.
            error = as_coded(exc, EngineFailed, self._engine.ready.engine_kind)
            log.error("an order failed: %s", error, exc_info=None if error is exc else exc)
            answer(Failed(order.request_id, WireError.of(error)))

    def _carry_out(self, order: Order) -> None:
        engine = cast(OrderedAdapter, self._engine)
        log.info("order: %s", order)
        match order:
            case LoadAdapter():
                self._change(adapters=engine.load_adapter(order))
            case UnloadAdapter(name=name):
                self._change(adapters=engine.unload_adapter(name))
            case Sleep():
                was_asleep = engine.ready.is_asleep
                self._change(is_asleep=True)
                try:
                    engine.sleep(order)
                except Exception:
                    self._change(is_asleep=was_asleep)
                    raise
            case WakeUp(tags=tags):
                is_awake = engine.wake_up(tags)
                self._change(is_asleep=not is_awake)

    def _change(self, **fields: object) -> None:
        self._engine.ready = msgspec.structs.replace(self._engine.ready, **fields)
        self._on_change()
