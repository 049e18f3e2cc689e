"""Calls of Triton's gRPC API that have one message and one answer, and run nothing."""

import asyncio
from functools import partial
from typing import Any

from google.protobuf.json_format import ParseDict
from tritonclient.grpc import service_pb2 as pb

from errors.coded_error import CodedError
from runner.triton_server.front.answers import statuses_of
from runner.triton_server.front.grpc.calls import ClientCall, parsed
from runner.triton_server.front.starts import CallStart
from runner.triton_server.grpc_client.call import TritonCall
from runner.triton_server.grpc_wire import OK, SERVICE

HEALTH = "/grpc.health.v1.Health/Check"
_HEALTH_LIKE = "ModelReady"
"""A method whose request begins as that of ``HEALTH``: field 1 is a text."""
_NOT_READY = {"ServerReady": b"", "ModelReady": b"", HEALTH: b"\x08\x02"}
"""Answers that the server is not ready: nothing that says so, and the status NOT_SERVING."""


class PassedCall(ClientCall):
    """A call with one message and one answer, which Triton answers at once."""

    _call: TritonCall | None = None
    _start: CallStart | None = None

    def message(self, message: bytes) -> None:
        if self.method in _NOT_READY and not self.server.is_engine_ready():
            self.respond(_NOT_READY[self.method])
            self.finish(OK, "")
            return
        # NOTE: Triton gets nothing that it can't parse: it would end such a call several times.
        name = _HEALTH_LIKE if self.method == HEALTH else self.method
        request = parsed(message, getattr(pb, f"{name}Request"))
        request.DiscardUnknownFields()
        content = request.SerializeToString()
        self._start = self.server.inferences.reads.add(self.connection, partial(self._begin, content))

    def cancel(self) -> None:
        if self._call is not None:
            self._call.stop_reading()
        elif self._start is not None:
            self._start.end()

    def _begin(self, message: bytes) -> None:
        path = HEALTH if self.method == HEALTH else f"{SERVICE}/{self.method}"
        try:
            triton = self.server.inferences.triton
            self._call = triton.begin_path(path, self.metadata, self.respond, self._ended)
        except CodedError as exc:
            self._loop.call_soon(self._ended, statuses_of(exc)[1], str(exc))
            return
        self._call.send(message, is_last=True)

    def _ended(self, status: int, text: str) -> None:
        assert self._start is not None
        self._start.end()
        self.finish(status, text)


class StatisticsCall(ClientCall):
    """``ModelStatistics``."""

    _task: asyncio.Task[None] | None = None
    _start: CallStart | None = None

    def message(self, message: bytes) -> None:
        request = parsed(message, pb.ModelStatisticsRequest)
        self._start = self.server.statistics.add(self.connection, partial(self._begin, request))

    def cancel(self) -> None:
        if self._task is not None:
            if self._task is not asyncio.current_task():
                self._task.cancel()
        elif self._start is not None:
            self._start.end()

    def _begin(self, request: Any) -> None:
        self._task = asyncio.create_task(self._answer(request.name, request.version))
        self._task.add_done_callback(self._end)

    def _end(self, task: object) -> None:
        assert self._start is not None
        self._start.end()

    async def _answer(self, model: str, version: str) -> None:
        try:
            statistics = await self.server.triton_http.statistics(model, version)
            self.respond(
                ParseDict({"model_stats": statistics}, pb.ModelStatisticsResponse()).SerializeToString()
            )
            self.finish(OK, "")
        except CodedError as exc:
            self.fail(exc)
        except Exception:  # noqa: BLE001 - other calls of the connection go on
            self.fail_unexpectedly()
