"""The Triton Python model ``postprocessing``: token ids to text, for the ensemble.

The responses of a stream arrive one at a time, in order. Text that is not certain yet (part of a character,
for example) is kept for the next response, under the ``stream_id`` in the slot's responses. If the response
does not have the prompt, tokens of the prompt follow the ``stream_id``: the text continues theirs.
"""

import itertools
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
"""Limit of open streams: the end of a failed one does not arrive, so the least recently used are dropped."""


class TritonPythonModel:
    """Triton's interface of a Python model."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        await_arrival(Path(parameters[PARAMETER]["string_value"]))
        directory = Path(parameters["tokenizer_dir"]["string_value"])
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._skips_special = parameters["skip_special_tokens"]["string_value"].lower() in ("true", "1")
        self._streams: OrderedDict[tuple[int, int], Detokenizer] = OrderedDict()
        """Detokenizers by stream id and number of the sequence: a request may have several outputs."""

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._respond(request) for request in requests]

    def _respond(self, request: Any) -> Any:
        inputs = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        tokens, lengths = inputs["TOKENS_BATCH"], inputs["SEQUENCE_LENGTH"]
        try:
            if tokens.shape[:2] != lengths.shape:
                shape = list(tokens.shape[:2])
                raise InvalidTensor(name="SEQUENCE_LENGTH", expected=f"of shape {shape}", value=lengths.shape)
            if "STREAM_ID" in inputs and lengths.shape[1] == 1:
                texts = [self._continue(inputs, row) for row in range(len(tokens))]
            else:
                rows = itertools.product(range(lengths.shape[0]), range(lengths.shape[1]))
                texts = [
                    self._decode(inputs, row, tokens[row, number, : lengths[row, number]].tolist())
                    for row, number in rows
                ]
        except InvalidTensor as exc:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(exc)))
        except OverflowError:
            error = InvalidTensor(name="TOKENS_BATCH", expected="of token ids", value=int(tokens.min()))
            return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))
        # NVIDIA's has one dimension, too, with the texts of all rows and sequences.
        output = pb_utils.Tensor("OUTPUT", np.array([text.encode() for text in texts], dtype=object))
        return pb_utils.InferenceResponse([output])

    def _detokenizer(self, inputs: dict[str, Any], row: int) -> Detokenizer:
        detokenizer = Detokenizer(self._tokenizer, skip_special_tokens=self._skips_special)
        prompt = inputs["STREAM_ID"][row].reshape(-1)[1:] if "STREAM_ID" in inputs else np.empty(0, np.int64)
        detokenizer.follow(prompt[prompt >= 0].tolist())
        return detokenizer

    def _decode(self, inputs: dict[str, Any], row: int, tokens: list[int]) -> str:
        """Return the text of a whole sequence."""
        detokenizer = self._detokenizer(inputs, row)
        return detokenizer.push(tokens) + detokenizer.finish()

    def _continue(self, inputs: dict[str, Any], row: int) -> str:
        """Return the next text of a stream, which has one sequence in each response."""
        tokens = inputs["TOKENS_BATCH"][row, 0, : inputs["SEQUENCE_LENGTH"].item(row)].tolist()
        is_last = "FINISH_REASON" in inputs and bool(inputs["FINISH_REASON"][row].item(0))
        number = inputs["SEQUENCE_INDEX"].item(row) if "SEQUENCE_INDEX" in inputs else 0
        stream_id = (inputs["STREAM_ID"][row].item(0), number)
        detokenizer = self._streams.pop(stream_id, None) or self._detokenizer(inputs, row)
        text = detokenizer.push(tokens)
        if is_last:
            return text + detokenizer.finish()
        self._streams[stream_id] = detokenizer
        if len(self._streams) > _MAX_STREAMS:
            self._streams.popitem(last=False)
        return text
