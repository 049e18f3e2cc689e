"""A stand-in of Triton behind its front: models with the slot's inputs, and calls that the fuzzer answers."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from tritonclient.grpc import model_config_pb2 as mc
from tritonclient.grpc import service_pb2 as pb

from engine.machine.root import SOURCE_ROOT
from errors.triton import TritonUnavailable
from runner.triton_server.front.budget import Budget
from runner.triton_server.front.inference import Inferences
from runner.triton_server.front.models import Model, Models, model_of
from runner.triton_server.grpc_client.call import OnEnd, OnMessage
from runner.triton_server.grpc_client.triton import Triton
from runner.triton_server.grpc_wire import INTERNAL, OK, UNAVAILABLE, Headers
from tests.fuzz.choices import Choices

_INPUT = re.compile(r'{ name: "(\w+)" data_type: TYPE_(\w+) dims: \[ ([-\d, ]+) \](.*) }')
_MAX_REQUESTS = 8
_MAX_HELD_BYTES = 1 << 17
_TEXTS = (b"hi", b"", b"\xff", b"triton_final_response\x12\x02\x08\x01", b"x" * 3000)


@cache
def inputs_of(model: str) -> dict[str, tuple[str, tuple[int, ...], bool]]:
    """Type, dimensions and whether the model gets them without the last one, by name."""
    text = (SOURCE_ROOT / f"triton_model_repo/{model}/config.pbtxt").read_text().partition("\noutput")[0]
    return {
        name: (kind.replace("STRING", "BYTES"), tuple(map(int, dims.split(","))), "reshape" in rest)
        for name, kind, dims, rest in _INPUT.findall(text)
    }


@cache
def models() -> dict[str, Model]:
    found = {}
    for name in ("tensorrt_llm", "ensemble"):
        config = mc.ModelConfig(name=name, max_batch_size=8)
        config.platform, config.backend = ("ensemble", "") if name == "ensemble" else ("", "python")
        for each, (kind, dims, _) in inputs_of(name).items():
            data_type = f"TYPE_{kind.replace('BYTES', 'STRING')}"
            config.input.add(name=each, data_type=mc.DataType.Value(data_type), dims=dims)
        found[name] = model_of(config, "1")
    return found


class StandInCall:
    """What the front sent to Triton in one call."""

    def __init__(
        self, triton: StandInTriton, method: str, metadata: Headers, on_message: OnMessage, on_end: OnEnd
    ) -> None:
        self._triton = triton
        self.method = method
        self.metadata = metadata
        self.on_message = on_message
        self.on_end = on_end
        self.sent: list[bytes] = []
        self.is_ignored = self.is_reset = False

    def send(self, message: bytes, *, is_last: bool = False) -> None:
        self.sent.append(message)

    def half_close(self) -> None: ...

    def stop_reading(self) -> None:
        self.is_ignored = True

    def reset(self) -> None:
        self.is_reset = self._triton.remove(self)


class StandInTriton(Triton):
    def __init__(self) -> None:
        super().__init__(0)
        self.is_reachable = True
        self.is_up = True
        self.calls: list[StandInCall] = []

    @property
    def is_connected(self) -> bool:
        return self.is_up

    async def connect(self) -> None:
        if not self.is_reachable:
            raise TritonUnavailable(reason="it is a stand-in")
        self.is_up = True

    def begin_path(self, path: str, metadata: Headers, on_message: OnMessage, on_end: OnEnd) -> Any:
        if not self.is_up:
            raise TritonUnavailable(reason="it is a stand-in")
        call = StandInCall(self, path.rpartition("/")[2], metadata, on_message, on_end)
        self.calls.append(call)
        return call

    def answer(self, choices: Choices) -> None:
        """Something, or nothing, to each call."""
        for call in list(self.calls):
            kind = choices.below(6)
            if kind == 1:
                self._end(call, OK, "")
            elif kind == 2:
                text = choices.text().encode(errors="replace").decode()
                self._end(call, choices.of((INTERNAL, UNAVAILABLE)), text)
            elif kind > 2 and call.sent and not call.is_ignored:
                call.on_message(self._response(choices, call, is_final=kind == 3))

    def disconnect(self) -> None:
        self.is_up = False
        for call in list(self.calls):
            self._end(call, UNAVAILABLE, "Triton has ended")

    def finish(self, call: StandInCall) -> None:
        self._end(call, OK, "")

    def remove(self, call: StandInCall) -> bool:
        is_open = call in self.calls
        if is_open:
            self.calls.remove(call)
        return is_open

    def _end(self, call: StandInCall, status: int, text: str) -> None:
        if self.remove(call):
            call.on_end(status, text)

    def _response(self, choices: Choices, call: StandInCall, *, is_final: bool) -> bytes:
        if not call.method.endswith("Infer"):
            return choices.bytes(8)
        if not choices.below(8):
            return bytes(
                pb.ModelStreamInferResponse(error_message="E1103 InvalidTensor: x").SerializeToString()
            )
        request = pb.ModelInferRequest.FromString(call.sent[-1])
        message = pb.ModelStreamInferResponse()
        response = message.infer_response
        response.model_name, response.id = request.model_name, request.id
        response.parameters["triton_final_response"].bool_param = is_final
        if choices.flag():
            response.outputs.add(name="output_ids", datatype="INT32", shape=[1, 1])
            response.raw_output_contents.append(b"\1\0\0\0")
            text = choices.of(_TEXTS)
            response.outputs.add(name="text_output", datatype="BYTES", shape=[1])
            response.raw_output_contents.append(len(text).to_bytes(4, "little") + text)
        return bytes(message.SerializeToString())


class _Models(Models):
    async def load(self) -> None:
        await self._triton.connect()
        self._models = dict(models())


def stand_in() -> tuple[StandInTriton, Inferences]:
    triton = StandInTriton()
    all_models = _Models(triton)
    all_models._models = dict(models())
    return triton, Inferences(triton, all_models, Budget(_MAX_HELD_BYTES), _MAX_REQUESTS)
