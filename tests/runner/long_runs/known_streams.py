"""Streams by each API of a server on a paced engine, which repeats the tokens of the prompt."""

import json
import re
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import numpy as np
from tokenizers import Tokenizer
from tritonclient.grpc import InferInput
from tritonclient.grpc.aio import InferenceServerClient
from tritonclient.utils import InferenceServerException

from perf.bench.measure import cog_target, openai_target
from perf.load.http import HttpClient, RequestFailed
from perf.load.record import Answer
from perf.load.response import Response
from perf.load.targets.target import Posting, Workload
from perf.load.targets.triton import TritonTarget
from perf.peers.requests import ids_text, text_of
from perf.servers import Stack
from runner.triton_server.model_names import ENSEMBLE, SLOT

COG, OPENAI, TRITON = APIS = ("Cog", "API", "Triton")
COG_JSON, OPENAI_JSON = WHOLE_APIS = ("Cog, JSON", "API, JSON")
ENSEMBLE_HTTP, SLOT_GRPC, ENSEMBLE_GRPC = TRITON_APIS = ("ensemble", "slot, gRPC", "ensemble, gRPC")
CLOSED = "closed"
"""The error of a stream whose connection was closed."""
_TIMEOUT_S = 90.0
_TRITON_PROMPT_TOKENS = 8
_CODE = re.compile(r"E[12]\d{3}")
_SHOWN_CHARACTERS = 40
_TYPES = {str: ("BYTES", np.object_), bool: ("BOOL", np.bool_), int: ("INT32", np.int32)}


class TritonGRPCTarget(TritonTarget):
    """A target that sends TritonTarget's requests as tensors, and reads its responses as events."""

    def __init__(self, address: str, model: str, workload: Workload) -> None:
        super().__init__(f"http://{address}", model, workload)
        self._address = address
        self._model = model

    async def exchange(self, http: HttpClient) -> Sequence[Response]:
        response = Response(200, {})
        async with InferenceServerClient(self._address) as client:
            try:
                async for result, error in client.stream_infer(self._requests()):
                    _add(response, {"error": str(error)} if error else _document(result))
            except (InferenceServerException, grpc.RpcError) as exc:
                _add(response, {"error": str(exc)})
        return [response]

    async def _requests(self) -> AsyncIterator[dict[str, Any]]:
        inputs = [_tensor(name, value) for name, value in json.loads(self.request.body).items()]
        yield {"model_name": self._model, "inputs": inputs}


def _add(response: Response, document: dict[str, Any]) -> None:
    response.pieces.append((time.perf_counter(), b"data: %b\n\n" % json.dumps(document).encode()))


def _tensor(name: str, value: Any) -> InferInput:
    values = value if isinstance(value, list) else [value]
    datatype, dtype = _TYPES[type(values[0])]
    tensor = InferInput(name, [1, len(values)], datatype)
    return tensor.set_data_from_numpy(np.array([values], dtype))


def _document(result: Any) -> dict[str, Any]:
    arrays = {each.name: result.as_numpy(each.name).ravel() for each in result.get_response().outputs}
    texts = "".join(each.decode() for each in arrays.get("text_output", ()))
    ids = arrays.get("output_ids", np.array([], int)).tolist()
    return {"text_output": texts} if "text_output" in arrays else {"output_ids": ids}


_TARGETS: dict[str, Callable[[Stack, Workload], Posting]] = {
    COG: partial(cog_target, is_streaming=True),
    OPENAI: openai_target,
    COG_JSON: partial(cog_target, is_streaming=False),
    OPENAI_JSON: partial(openai_target, is_streaming=False),
    TRITON: lambda stack, work: TritonTarget(stack.triton_url, SLOT, work),
    ENSEMBLE_HTTP: lambda stack, work: TritonTarget(stack.triton_url, ENSEMBLE, work),
    SLOT_GRPC: lambda stack, work: TritonGRPCTarget(stack.triton_grpc, SLOT, work),
    ENSEMBLE_GRPC: lambda stack, work: TritonGRPCTarget(stack.triton_grpc, ENSEMBLE, work),
}


class KnownStream(NamedTuple):
    """``error`` is a code, CLOSED, or blank for a stream that was completed.

    ``is_exact``: the text is the known one, or its beginning if the stream was not completed.
    """

    api: str
    error: str
    is_exact: bool


class KnownStreams:
    def __init__(self, stack: Stack, engine: Path) -> None:
        self._stack = stack
        self._tokenizer = Tokenizer.from_file(str(engine / "tokenizer.json"))
        self._http = HttpClient(_TIMEOUT_S)

    def close(self) -> None:
        self._http.close()

    async def request(self, api: str, prompt: str, num_tokens: int) -> KnownStream:
        work = Workload(prompt, _TRITON_PROMPT_TOKENS, num_tokens, is_fixed_length=False)
        target = _TARGETS[api](self._stack, work)
        response: Response | None
        try:
            (response,) = await target.exchange(self._http)
            is_closed = False
        except RequestFailed as exc:
            response, is_closed = exc.response, True
        answer = Answer() if response is None else target.read([response])
        code = _CODE.search(answer.error)
        error = CLOSED if is_closed else code[0] if code else answer.error[:_SHOWN_CHARACTERS]
        text = text_of(response) if response is not None and response.status == 200 else ""
        # A token has a character at least: no more of the known text may have arrived.
        most_tokens = min(num_tokens, len(text) + 1) if error else num_tokens
        if api in (TRITON, SLOT_GRPC):
            known = ids_text(islice(cycle(json.loads(target.request.body)["input_ids"]), most_tokens))
        else:
            ids = self._tokenizer.encode(prompt).ids
            known = str(self._tokenizer.decode(list(islice(cycle(ids), most_tokens))))
        return KnownStream(api, error, known.startswith(text) if error else known == text)
