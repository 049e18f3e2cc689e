"""Streams of gRPC whose requests are mixed and whose clients leave at any time."""

import itertools
import time
from collections.abc import Iterator
from contextlib import suppress
from random import Random
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2 as pb
from tritonclient.grpc import service_pb2_grpc

from tests.attacks.bodies import size
from tests.attacks.http1 import Attack, Outcome, Ports, outcome
from tests.hostile import HOST

_MODELS = ("ensemble", "tensorrt_llm_bls", "tensorrt_llm", "preprocessing", "postprocessing", "unknown")
_MAX_REQUESTS = 20
_MAX_READ = 500
"""Responses."""
_TIMEOUTS_S = (0.001, 0.05, 0.5, 60.0)


def _inference(chance: Random) -> Any:
    """To any model, with inputs that may be another's, in any order, with tensors that may not fit."""
    text = b"a b c " * size(chance, 500)
    inputs = {
        "text_input": ("BYTES", len(text).to_bytes(4, "little") + text),
        "max_tokens": ("INT32", np.int32(size(chance, 5000)).tobytes()),
        "stream": ("BOOL", bytes([chance.random() < 0.7])),
        "input_ids": ("INT32", np.arange(size(chance, 50), dtype=np.int32).tobytes()),
        "request_output_len": ("INT32", np.int32(size(chance, 5000)).tobytes()),
        "streaming": ("BOOL", b"\1"),
        "stop": ("BOOL", bytes([chance.random() < 0.2])),
    }
    request = pb.ModelInferRequest(
        model_name=chance.choice(_MODELS), id=chance.choice(("", "same", "x" * 500))
    )
    names = list(inputs)[:3] if chance.random() < 0.5 else list(inputs)[3:]
    for name in chance.sample(names, chance.randint(1, len(names))):
        datatype, raw = inputs[name]
        length = len(raw) // 4 if name == "input_ids" else 1
        request.inputs.add(name=name, datatype=datatype, shape=chance.choice(([1, length], [length], [2, 1])))
        request.raw_input_contents.append(raw)
    return request


def mixed_streams(ports: Ports, chance: Random) -> Iterator[Outcome]:
    """Beside them statistics are read; some clients close their connection, others cancel, or are late."""
    with grpc.insecure_channel(f"{HOST}:{ports['grpc']}") as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        for _ in range(size(chance, 20)):
            requests = [_inference(chance) for _ in range(size(chance, _MAX_REQUESTS))]
            metadata = [("triton_grpc_error", "true")] * chance.randint(0, 1)
            start_s, status = time.monotonic(), "OK"
            text = b""
            try:
                call = stub.ModelStreamInfer(
                    iter(requests), timeout=chance.choice(_TIMEOUTS_S), metadata=metadata
                )
                stub.ModelStatistics(pb.ModelStatisticsRequest(name=chance.choice(("", "ensemble", "x"))))
                for answer in itertools.islice(call, chance.randint(0, _MAX_READ)):
                    text = answer.error_message.encode()
                call.cancel()
            except grpc.RpcError as exc:
                status, text = exc.code().name, (exc.details() or "").encode()
            found = outcome("grpc", b"HTTP/1.1 200 " + text, start_s)
            yield found._replace(answer=found.answer.replace("200", status), text=text[:4000])
            with suppress(grpc.RpcError):
                stub.ServerLive(pb.ServerLiveRequest(), timeout=60)


ATTACKS: dict[str, Attack] = {"mixed gRPC streams": mixed_streams}
