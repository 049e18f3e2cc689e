"""The Triton Python model ``postprocessing``: token ids to text, for the ensemble.

The responses of a stream arrive one at a time, in order. Text that is not certain yet (part of a character,
for example) is kept for the next response, under the ``stream_id`` in the slot's responses.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from errors.requests import InvalidTensor
from runner.detokenizer.detokenizer import Detokenizer
from runner.engines.protocol.arrival import PARAMETER, await_arrival

_MAX_STREAMS = 65536
"""The end of a stream that failed does not arrive here, so the least recently used streams are dropped."""


class TritonPythonModel:
    """Triton's interface of a Python model."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        await_arrival(Path(parameters[PARAMETER]["string_value"]))
        directory = Path(parameters["tokenizer_dir"]["string_value"])
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._skips_special = parameters["skip_special_tokens"]["string_value"].lower() in ("true", "1")
        self._streams: OrderedDict[int, Detokenizer] = OrderedDict()

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        rows = len(inputs["TOKENS_BATCH"])
        try:
            texts = [self._text(inputs, row) for row in range(rows)]
        except OverflowError:
            wrong = int(inputs["TOKENS_BATCH"].min())
            error = InvalidTensor(name="TOKENS_BATCH", expected="of token ids", value=wrong)
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        output = pb_utils.Tensor("OUTPUT", np.array([[text.encode()] for text in texts], dtype=object))
        return pb_utils.InferenceResponse([output])

    def _text(self, inputs: dict[str, Any], row: int) -> str:
        length = int(inputs["SEQUENCE_LENGTH"][row].reshape(-1)[0])
        tokens = inputs["TOKENS_BATCH"][row].reshape(-1)[:length].tolist()
        if "STREAM_ID" not in inputs:
            text: str = self._tokenizer.decode(tokens, skip_special_tokens=self._skips_special)
            return text
        is_last = "FINISH_REASON" in inputs and bool(inputs["FINISH_REASON"][row].reshape(-1)[0])
        return self._continue(int(inputs["STREAM_ID"][row].reshape(-1)[0]), tokens, is_last)

    def _continue(self, stream_id: int, tokens: list[int], is_last: bool) -> str:
        detokenizer = self._streams.pop(stream_id, None)
        if detokenizer is None:
            detokenizer = Detokenizer(self._tokenizer, skip_special_tokens=self._skips_special)
        text = detokenizer.push(tokens)
        if is_last:
            return text + detokenizer.finish()
        self._streams[stream_id] = detokenizer
        if len(self._streams) > _MAX_STREAMS:
            self._streams.popitem(last=False)
        return text
