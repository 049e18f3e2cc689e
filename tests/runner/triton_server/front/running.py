"""The front of a server under test, and requests to it."""

from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from runner.triton_server.front.supervisor import TritonFront
from tests.runner.servers import TritonUnderTest

QUESTION = "What is machine learning?"
ASKED = {"text_input": QUESTION, "max_tokens": 5}


def front_of(server: TritonUnderTest) -> TritonFront:
    (front,) = (each for each in server.service.stack.processes if isinstance(each, TritonFront))
    return front


def front_pid(server: TritonUnderTest) -> int:
    pid = front_of(server).pid
    assert pid is not None
    return pid


def inference(
    model: str = "ensemble", max_tokens: int = 5, *, datatype: str = "INT32", is_streaming: bool = False
) -> Any:
    asked = pb.ModelInferRequest(model_name=model, id="asked")
    values = {
        "text_input": ("BYTES", len(QUESTION).to_bytes(4, "little") + QUESTION.encode()),
        "max_tokens": (datatype, np.array([max_tokens], datatype.lower()).tobytes()),
        "stream": ("BOOL", bytes([is_streaming])),
    }
    for name, (kind, raw) in values.items():
        asked.inputs.add(name=name, datatype=kind, shape=[1, 1])
        asked.raw_input_contents.append(raw)
    return asked
