"""A GGUF model in memory, and the context that computes batches of its sequences."""

import ctypes
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from engine.kinds import LLAMA_CPP_SEQUENCES
from engine.machine import main_memory
from engine.machine.processors import usable_processors
from runner.engines.llama_cpp.library import (
    FLOAT16_BYTES,
    LOG_CONTINUED,
    LOG_ERROR,
    Batch,
    LogCallback,
    open_library,
    start_failed,
)
from runner.engines.protocol.options import integer, parse_options

Scores = NDArray[np.float32]

_LEAST_STEP_TOKENS = 32
_STEP_BYTES_PER_THREAD = 32 << 30
"""Bytes of weights times tokens of a step. Large models have shorter steps, as all requests wait for one."""
_NO_ROOM = 1
"""Result of llama_decode if the KV cache has no room for the batch."""


@dataclass(frozen=True)
class Options:
    """Parsed options. ``max_tokens_in_paged_kv_cache`` None: what the model needs, as far as it fits."""

    max_batch_size: int
    max_tokens_in_paged_kv_cache: int | None

    @classmethod
    def parse(cls, options: Mapping[str, str]) -> "Options":
        """Parse options; empty ones count as absent. Raises InvalidSetting."""
        parsed = parse_options(
            options, {"max_batch_size": _batch_size, "max_tokens_in_paged_kv_cache": integer(1)}
        )
        return cls(
            parsed.get("max_batch_size", main_memory.BATCH_SIZE), parsed.get("max_tokens_in_paged_kv_cache")
        )


def _batch_size(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= LLAMA_CPP_SEQUENCES):
        raise ValueError(f"a whole number from 1 to {LLAMA_CPP_SEQUENCES}, which is llama.cpp's limit")
    return int(text)


class Part(NamedTuple):
    """Tokens of one sequence in a batch: ``tokens`` follow the ``position`` tokens that are computed."""

    number: int
    """Number of the sequence in the context."""
    position: int
    tokens: Sequence[int]
    wants_scores: bool
    """True to get the scores of the token after the last one."""


class Model:
    """A model with its KV cache. After loading, one thread calls its methods."""

    def __init__(self, path: Path, options: Options) -> None:
        """Load the model. Raises EngineStartFailed and ModuleNotFoundError."""
        self._library = library = open_library()
        self._last_errors: deque[str] = deque(maxlen=4)
        self._log = LogCallback(self._keep_errors)
        library.llama_log_set(self._log, None)
        library.llama_backend_init()
        params = library.llama_model_default_params()
        params.n_gpu_layers = 0
        self._model = library.llama_model_load_from_file(bytes(path), params)
        if not self._model:
            raise start_failed(f"llama.cpp can't load {path.name}: {self._reason()}")
        if library.llama_model_has_encoder(self._model) or not library.llama_model_has_decoder(self._model):
            raise start_failed(f"{path.name} has an encoder; this engine runs models that only decode")
        if library.llama_model_is_diffusion(self._model):
            raise start_failed(f"{path.name} is a diffusion model, which does not generate token by token")
        self.vocab_size = library.llama_vocab_n_tokens(library.llama_model_get_vocab(self._model))
        has_state = library.llama_model_is_recurrent(self._model) or library.llama_model_is_hybrid(
            self._model
        )
        self.can_share_prefixes = not has_state
        """False for a model whose state can't be cut at a token."""
        more = 1 if has_state else 2
        self.num_sequences = min(more * options.max_batch_size, LLAMA_CPP_SEQUENCES)
        """Number of sequences in the KV cache: those of a batch, and as many finished ones."""
        self._context = self._new_context(path.stat().st_size, options)
        if not self._context:
            raise start_failed(f"llama.cpp can't make the KV cache: {self._reason()}")
        self._memory = library.llama_get_memory(self._context)
        if not self._memory:
            raise start_failed(f"{path.name} has no KV cache: it makes embeddings and generates no text")
        # NOTE: llama.cpp aborts at a larger batch. It takes the least of n_batch and the KV cache asked for.
        self.step_tokens: int = min(self.step_tokens, library.llama_n_batch(self._context))
        self.num_cells = int(library.llama_n_ctx(self._context))
        """Number of tokens that the KV cache holds."""
        self.max_sequence_length = min(library.llama_model_n_ctx_train(self._model), self.num_cells)
        self._arrays = _Arrays(self.step_tokens)

    def _new_context(self, weight_bytes: int, options: Options) -> Any:
        num_threads = usable_processors()
        affordable_tokens = num_threads * _STEP_BYTES_PER_THREAD // max(weight_bytes, 1)
        prompt_tokens = min(max(affordable_tokens, _LEAST_STEP_TOKENS), main_memory.STEP_TOKENS)
        self.step_tokens = max(prompt_tokens, options.max_batch_size)
        """Number of tokens that a batch may have."""
        num_cells = options.max_tokens_in_paged_kv_cache
        if num_cells is None:
            num_cells = main_memory.fixed_cache(
                present_bytes=main_memory.ram_here_bytes(),
                weight_bytes=weight_bytes,
                token_bytes=self._token_bytes(),
                max_tokens=self._library.llama_model_n_ctx_train(self._model),
                batch_size=options.max_batch_size,
            ).num_tokens
        params = self._library.llama_context_default_params()
        params.n_ctx = num_cells
        params.n_batch = params.n_ubatch = self.step_tokens
        params.n_seq_max = self.num_sequences
        # NOTE: llama.cpp aborts if it is less than n_seq_max.
        params.n_outputs_max = self.num_sequences
        params.n_threads = params.n_threads_batch = num_threads
        params.kv_unified = True
        return self._library.llama_init_from_model(self._model, params)

    def _token_bytes(self) -> int:
        """Return the bytes of a token's keys and values in all layers."""
        library, model = self._library, self._model
        usual = library.llama_model_n_embd(model) // max(library.llama_model_n_head(model), 1)
        architecture = self._metadata("general.architecture")
        sizes = [
            int(self._metadata(f"{architecture}.attention.{part}_length") or usual)
            for part in ("key", "value")
        ]
        # NOTE: these are the first layer's, which has no attention in some models with a state.
        heads = library.llama_model_n_head_kv(model) or library.llama_model_n_head(model) or 1
        return FLOAT16_BYTES * int(library.llama_model_n_layer(model) * heads) * sum(sizes)

    def _metadata(self, key: str) -> str:
        value = ctypes.create_string_buffer(128)
        self._library.llama_model_meta_val_str(self._model, key.encode(), value, len(value))
        return value.value.decode(errors="replace")

    def compute(self, parts: Sequence[Part]) -> Scores | None:
        """Compute one batch. Return scores [parts that want them, vocabulary], which the caller may change.

        None: the KV cache has no room for the batch, and is as before. Raises RuntimeError.
        """
        num_tokens = self._arrays.fill(parts)
        result = self._library.llama_decode(self._context, self._arrays.batch(num_tokens))
        if result == _NO_ROOM:
            return None
        if result != 0:
            raise RuntimeError(f"llama_decode returned {result}: {self._reason()}")
        count = sum(part.wants_scores for part in parts)
        if not count:
            return np.empty((0, self.vocab_size), np.float32)
        found = self._library.llama_get_logits(self._context)
        return np.ctypeslib.as_array(found, (count, self.vocab_size)).copy()

    def keep(self, number: int, num_tokens: int) -> None:
        """Remove all but the first tokens of a sequence from the KV cache."""
        self._library.llama_memory_seq_rm(self._memory, number, num_tokens, -1)

    def share(self, source: int, target: int, num_tokens: int) -> None:
        """Make the first tokens of ``source`` those of the empty sequence ``target``, without a copy."""
        self._library.llama_memory_seq_cp(self._memory, source, target, 0, num_tokens)

    def close(self) -> None:
        self._library.llama_free(self._context)
        self._library.llama_model_free(self._model)

    def _keep_errors(self, level: int, text: bytes, _: object) -> None:
        if level in (LOG_ERROR, LOG_CONTINUED) and (line := text.decode(errors="replace").strip(" .\n")):
            self._last_errors.append(line)

    def _reason(self) -> str:
        return "; ".join(self._last_errors) or "no reason given"


class _Arrays:
    """The memory of a batch, which is filled for each step."""

    def __init__(self, size: int) -> None:
        self._tokens, self._positions, self._numbers = (np.zeros(size, np.int32) for _ in range(3))
        self._counts = np.ones(size, np.int32)
        self._wanted = np.zeros(size, np.int8)
        first = self._numbers.ctypes.data
        self._number_pointers = np.arange(size, dtype=np.uintp) * self._numbers.itemsize + first

    def fill(self, parts: Sequence[Part]) -> int:
        """Return the number of tokens."""
        begin = 0
        for part in parts:
            end = begin + len(part.tokens)
            self._tokens[begin:end] = part.tokens
            self._positions[begin:end] = np.arange(part.position, part.position + len(part.tokens))
            self._numbers[begin:end] = part.number
            self._wanted[begin:end] = 0
            self._wanted[end - 1] = part.wants_scores
            begin = end
        return begin

    def batch(self, num_tokens: int) -> Batch:
        int32s = ctypes.POINTER(ctypes.c_int32)
        return Batch(
            num_tokens,
            self._tokens.ctypes.data_as(int32s),
            None,
            self._positions.ctypes.data_as(int32s),
            self._counts.ctypes.data_as(int32s),
            self._number_pointers.ctypes.data_as(ctypes.POINTER(int32s)),
            self._wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )
