"""Heartbeats of Triton and the slot: the slot's answer without the engine, and its executions."""

from __future__ import annotations

from errors.coded_error import CodedError
from runner.supervision.health import ask
from runner.triton_server.model_names import SLOT, SLOT_PATH
from runner.triton_server.statistics import statistics_of

_PROBE = b'{"id":"health","stop":true,"request_output_len":1,"input_ids":[0],"input_lengths":1}'


class Heartbeat:
    """Heartbeat of the Triton at ``url``, which counts its requests at ``metrics_url``."""

    def __init__(self, url: str, metrics_url: str) -> None:
        self._url = url
        self._metrics_url = metrics_url
        self._executions: int | None = None

    async def is_alive(self) -> bool:
        """Return True if Triton and the slot answer, even with an error, or have run requests since.

        A request of ours waits behind those of clients, of which there may be thousands.
        """
        before, self._executions = self._executions, await self._count_executions()
        if self._executions not in (None, before):
            return True
        return await ask(f"{self._url}{SLOT_PATH}/generate", _PROBE) is not None

    async def _count_executions(self) -> int | None:
        """Count what the slot has run, without a request to it; None without an answer."""
        answer = await ask(self._metrics_url)
        if answer is None:
            return None
        try:
            (slot, *_) = statistics_of(answer.content.decode(errors="replace"), SLOT)
        except CodedError:
            return None
        return int(slot["execution_count"])
