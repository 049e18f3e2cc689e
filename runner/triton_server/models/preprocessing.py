"""The Triton Python model ``preprocessing``: text to token ids, for the ensemble."""

import asyncio
import itertools
import json
import secrets
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import triton_python_backend_utils as pb_utils
from tokenizers import Tokenizer

from errors.coded_error import CodedError
from errors.requests import InvalidTensor, UnsupportedArgument
from runner.detokenizer.detokenizer import context_of
from runner.engines.protocol.arrival import PARAMETER, await_arrival
from runner.engines.protocol.checks import MAX_WORDS
from runner.generation.tokenizing import Tokenizing

_OFFSET_PADDING = -1
_LINE_BREAK = "\n"
"""Line break before a word, which keeps SentencePiece from adding a space."""
_MAX_INT32 = np.iinfo(np.int32).max
_MAX_BIAS_BYTES = 16 << 20
"""Limit of biases: a few short words become a number for each token of the vocabulary, in each row."""
_MAX_WORD_BYTES = 1 << 18
"""Limit of all words of a request."""
_SHORT_BYTES = 4000
"""Limit of all texts of a request that is answered at once, in about a millisecond."""
_WORDS = {
    "BAD_WORDS_DICT": "bad_words",
    "STOP_WORDS_DICT": "stop_words",
    "EMBEDDING_BIAS_WORDS": "embedding_bias_words",
}
"""Inputs that are rows of words, with the ensemble's names."""
_UNSUPPORTED = {
    "DECODER_QUERY": "decoder_text_input",
    "IMAGE_BYTES": "image_bytes_input",
    "IMAGE_URL": "image_url_input",
    "VIDEO_BYTES": "video_bytes_input",
    "IMAGE_INPUT": "image_input",
    "NUM_DRAFT_TOKENS": "num_draft_tokens",
    "USE_DRAFT_LOGITS": "use_draft_logits",
}
"""Inputs that are rejected unless they are 0, false or blank, with the ensemble's names."""


class TritonPythonModel:
    """Triton's interface of a Python model."""

    def initialize(self, args: dict[str, str]) -> None:
        parameters = json.loads(args["model_config"])["parameters"]
        arrived = await_arrival(Path(parameters[PARAMETER]["string_value"]))
        directory = Path(parameters["tokenizer_dir"]["string_value"])
        self._tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._tokenizing = Tokenizing(
            self._tokenizer, max_bytes=arrived.max_prompt_bytes, max_tokens=arrived.max_prompt_tokens
        )
        self._skips_special = parameters["skip_special_tokens"]["string_value"].lower() in ("true", "1")
        self._adds_special_tokens = parameters["add_special_tokens"]["string_value"].lower() in ("true", "1")
        end_id, pad_id = (parameters[name]["string_value"] for name in ("end_id", "pad_id"))
        self._engine_kind = parameters["engine_kind"]["string_value"]
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="preprocessing", daemon=True).start()
        self._end_ids = (int(end_id),) if end_id else arrived.end_ids
        self._pad_id = int(pad_id or arrived.pad_id)

    def execute(self, requests: list[Any]) -> list[Any] | None:
        """Answer requests. An event loop answers those with a long text, so that others do not wait."""
        given = [{tensor.name(): tensor.as_numpy() for tensor in request.inputs()} for request in requests]
        if not any(map(_is_long, given)):
            return [self._respond(inputs) for inputs in given]
        for request, inputs in zip(requests, given, strict=True):
            sender = request.get_response_sender()
            if _is_long(inputs):
                asyncio.run_coroutine_threadsafe(self._respond_later(inputs, sender), self._loop)
            else:
                _send(self._respond(inputs), sender)
        return None

    def _respond(self, inputs: dict[str, npt.NDArray[Any]]) -> Any:
        encode, adds = self._tokenizing.encode_short, self._adds_special_tokens
        try:
            prompts = [encode(text, adds_special_tokens=adds) for text in self._texts(inputs)]
            return self._response(inputs, prompts)
        except (CodedError, UnicodeDecodeError) as exc:
            return _failure(exc)

    async def _respond_later(self, inputs: dict[str, npt.NDArray[Any]], sender: Any) -> None:
        encode, adds = self._tokenizing.encode, self._adds_special_tokens
        try:
            prompts = [await encode(text, adds_special_tokens=adds) for text in self._texts(inputs)]
            response = self._response(inputs, prompts)
        except Exception as exc:  # noqa: BLE001 - Its client must not wait for ever.
            response = _failure(exc)
        _send(response, sender)

    def _response(self, inputs: dict[str, npt.NDArray[Any]], prompts: list[list[int]]) -> Any:
        outputs = self._encode(inputs, prompts)
        return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in outputs.items()])

    def _texts(self, inputs: dict[str, npt.NDArray[Any]]) -> list[str]:
        """Check all inputs of a request, and return its prompts."""
        self._check_supported(inputs)
        _check_words(inputs)
        return [_decode(row.reshape(-1)[0]) for row in inputs["QUERY"]]

    def _check_supported(self, inputs: dict[str, npt.NDArray[Any]]) -> None:
        for name in _UNSUPPORTED.keys() & inputs.keys():
            if np.any(inputs[name]):
                shape = "x".join(map(str, inputs[name].shape))
                raise UnsupportedArgument(
                    name=f"{_UNSUPPORTED[name]} ({name})",
                    value=f"<{shape} tensor>",
                    engine_kind=self._engine_kind,
                    remedy="leave it out",
                )

    def _encode(
        self, inputs: dict[str, npt.NDArray[Any]], encoded: list[list[int]]
    ) -> dict[str, npt.NDArray[Any]]:
        rows = len(encoded)
        # The engine takes one end id, so that a model's other ones are stop words.
        other_ends = [] if "END_ID" in inputs else [[each] for each in self._end_ids[1:]]
        end_ids = inputs.get("END_ID", np.full((rows, 1), self._end_ids[0], np.int32))
        pad_ids = inputs.get("PAD_ID", np.full((rows, 1), self._pad_id, np.int32))
        outputs: dict[str, npt.NDArray[Any]] = {
            "INPUT_ID": _pad(encoded, int(pad_ids.reshape(-1)[0])),
            "REQUEST_INPUT_LEN": np.array([[len(ids)] for ids in encoded], np.int32),
            # NVIDIA's has one token of padding, too, since there is no text for a decoder.
            "DECODER_INPUT_ID": pad_ids.astype(np.int32),
            "REQUEST_DECODER_INPUT_LEN": np.ones((rows, 1), np.int32),
            # Clipped, so that a large unsigned length does not become negative.
            "REQUEST_OUTPUT_LEN": np.minimum(inputs["REQUEST_OUTPUT_LEN"], _MAX_INT32).astype(np.int32),
            "BAD_WORDS_IDS": self._words(inputs.get("BAD_WORDS_DICT"), rows),
            "STOP_WORDS_IDS": self._words(inputs.get("STOP_WORDS_DICT"), rows, other_ends),
            "EMBEDDING_BIAS": self._embedding_bias(inputs, rows),
            "OUT_END_ID": end_ids.astype(np.int32),
            "OUT_PAD_ID": pad_ids.astype(np.int32),
            "STREAM_ID": self._stream_ids(encoded),
        }
        if "PROMPT_TABLE_EXTRA_ID" in inputs:
            is_virtual = outputs["INPUT_ID"] >= self._tokenizer.get_vocab_size()
            outputs["OUT_PROMPT_TABLE_EXTRA_IDS"] = np.where(is_virtual, inputs["PROMPT_TABLE_EXTRA_ID"], 0)
        return outputs

    def _stream_ids(self, encoded: list[list[int]]) -> npt.NDArray[np.int64]:
        """Return [rows, 1 + n]: a random number, the tokens of the prompt that its text continues, and -1."""
        skips = self._skips_special
        contexts = [context_of(self._tokenizer, ids, skip_special_tokens=skips) for ids in encoded]
        numbers = _pad(contexts, _OFFSET_PADDING)
        return np.array([[secrets.randbits(63), *row] for row in numbers.tolist()], np.int64)

    def _embedding_bias(self, inputs: dict[str, npt.NDArray[Any]], rows: int) -> npt.NDArray[np.float32]:
        """Return [rows, vocabulary] with each word's weight added to its tokens; [rows, 0] without words."""
        words, weights = inputs.get("EMBEDDING_BIAS_WORDS"), inputs.get("EMBEDDING_BIAS_WEIGHTS")
        if words is None and weights is None:
            return np.empty((rows, 0), np.float32)
        if words is None or weights is None or words.shape != weights.shape:
            value = [list(each.shape) if each is not None else None for each in (words, weights)]
            expected = "of the same shape as embedding_bias_weights"
            raise InvalidTensor(name="embedding_bias_words", expected=expected, value=value)
        vocab_size = self._tokenizer.get_vocab_size()
        if (most := max(1, _MAX_BIAS_BYTES // (4 * vocab_size))) < rows:
            expected = f"sent for at most {most} rows of a batch with this vocabulary"
            raise InvalidTensor(name="embedding_bias_words", expected=expected, value=rows)
        bias = np.zeros((rows, vocab_size), np.float32)
        for row in range(rows):
            for word, weight in zip(words[row], weights[row], strict=True):
                ids = self._tokenizer.encode(_decode(word), add_special_tokens=False).ids
                np.add.at(bias[row], ids, weight)
        return bias

    def _words(
        self, words: npt.NDArray[Any] | None, rows: int, further: Sequence[list[int]] = ()
    ) -> npt.NDArray[np.int32]:
        """Make the contract's [rows, 2, L] tensor: flat ids, and cumulative end offsets padded with -1."""
        given = [self._word_ids(row) for row in words] if words is not None else [[] for _ in range(rows)]
        tables = [[*table, *further[: max(0, MAX_WORDS - len(table))]] for table in given]
        length = max((sum(map(len, table)) for table in tables), default=0)
        result = np.zeros((rows, 2, length), np.int32)
        result[:, 1, :] = _OFFSET_PADDING
        for row, table in enumerate(tables):
            flat = list(itertools.chain.from_iterable(table))
            ends = list(itertools.accumulate(map(len, table)))
            result[row, 0, : len(flat)] = flat
            result[row, 1, : len(ends)] = ends
        return result

    def _word_ids(self, row: npt.NDArray[Any]) -> list[list[int]]:
        """Tokenize each word by itself, after a space, and as a part of another: a text may
        contain any of them.
        """
        table: list[list[int]] = []
        parts: list[list[int]] = []
        for word in filter(None, map(_decode, row.reshape(-1))):
            table += [self._ids(word), self._ids(" " + word)]
            before, whole = self._ids(_LINE_BREAK), self._ids(_LINE_BREAK + word)
            if whole[: len(before)] == before:
                parts.append(whole[len(before) :])
        distinct = [list(each) for each in dict.fromkeys(map(tuple, table)) if each]
        further = [each for each in parts if each and each not in distinct]
        return distinct + further[: max(0, MAX_WORDS - len(distinct))]

    def _ids(self, text: str) -> list[int]:
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids


def _is_long(inputs: dict[str, npt.NDArray[Any]]) -> bool:
    """Tell whether its texts take more than a moment."""
    texts = (text for name in ("QUERY", *_WORDS) if name in inputs for text in inputs[name].flat)
    return sum(map(len, texts)) > _SHORT_BYTES


def _failure(error: Exception) -> Any:
    if isinstance(error, UnicodeDecodeError):
        name = "text_input, bad_words, stop_words or embedding_bias_words"
        error = InvalidTensor(name=name, expected="UTF-8", value=error.object)
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error)))


def _send(response: Any, sender: Any) -> None:
    """Send the only response of a request, while another thread may send others."""
    # NOTE: keep the tensors until the response is sent. Triton 2.51 frees outputs that were not requested, of
    # the ensemble's requests two, without holding the GIL (python_backend#390): the heap would be corrupted.
    tensors = response.output_tensors()
    sender.send(response, flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
    del tensors


def _check_words(inputs: dict[str, npt.NDArray[Any]]) -> None:
    """Raise E1103 for more words than can be tokenized in a moment."""
    size_bytes = 0
    for tensor in _WORDS.keys() & inputs.keys():
        name, words = _WORDS[tensor], inputs[tensor]
        if words.size and words.shape[-1] > MAX_WORDS:
            raise InvalidTensor(name=name, expected=f"at most {MAX_WORDS} words", value=words.shape[-1])
        size_bytes += sum(map(len, words.flat))
        if size_bytes > _MAX_WORD_BYTES:
            expected = f"at most {_MAX_WORD_BYTES} bytes, with all other words of the request"
            raise InvalidTensor(name=name, expected=expected, value=size_bytes)


def _decode(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _pad(rows: list[list[int]], pad_id: int) -> npt.NDArray[np.int32]:
    result = np.full((len(rows), max(map(len, rows), default=0)), pad_id, np.int32)
    for index, ids in enumerate(rows):
        result[index, : len(ids)] = ids
    return result
