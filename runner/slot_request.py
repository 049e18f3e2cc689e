"""From the tensors of a Triton request to engine messages: the slot's side of the tensor contract.

The contract is that of NVIDIA's TensorRT-LLM backend (model ``tensorrt_llm``); later names
(``min_tokens``, ``seed``) are accepted beside the earlier ones (``min_length``, ``random_seed``).
Nothing is dropped silently: what no engine here can honour is E1104, a bad value E1103.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from errors.prompt import PromptTooLong
from errors.triton_arguments import InvalidTensor, UnsupportedArgument
from runner.adapter_name import check_adapter_name
from runner.engines.capabilities import honours
from runner.engines.messages import GUIDE_TYPES, Guide, GuideType, Ready, Sampling, Submit, Tensor

Tensors = Mapping[str, npt.NDArray[Any]]
"""Input tensors by name, batch dimension first."""

_UNSUPPORTED_SCALARS = (
    "return_context_logits",
    "return_generation_logits",
    "return_kv_cache_reuse_stats",
    "early_stopping",
    "runtime_top_p_min",
    "runtime_top_p_decay",
    "runtime_top_p_reset_ids",
    "beam_search_diversity_rate",
    "draft_acceptance_threshold",
)
_ENGINE_TENSORS = (
    "draft_input_ids",
    "draft_logits",
    "draft_acceptance_threshold",
    "embedding_bias",
    "prompt_embedding_table",
    "prompt_table_extra_ids",
    "lora_weights",
    "lora_config",
)
"""Handed to the engine as they are."""
_UNSUPPORTED_TENSORS = (
    *_ENGINE_TENSORS,
    "lora_task_id",
    "decoder_input_ids",
    "decoder_input_lengths",
    "context_phase_params",
    "encoder_input_features",
    "encoder_output_lengths",
    "cross_attention_mask",
    "skip_cross_attn_blocks",
)
_HONOURED: dict[str, frozenset[str]] = {
    "tensorrt_llm": frozenset(
        {
            *_ENGINE_TENSORS,
            "lora_task_id",
            "early_stopping",
            "runtime_top_p_min",
            "runtime_top_p_decay",
            "runtime_top_p_reset_ids",
            "beam_search_diversity_rate",
            "beam_width",
            "num_return_sequences",
        }
    )
}
"""By engine kind: what it takes of that which others don't."""
_NO_ENGINE_REMEDY = "leave it out"
_GUIDE_TYPES: dict[str, GuideType] = {name: name for name in GUIDE_TYPES}
_GUIDE_REMEDIES = {
    "tensorrt_llm": "set guided_decoding_backend: xgrammar for tensorrt_llm in the server configuration",
    "transformers": "its tokenizer.json is missing or not understood: the engine's log tells",
    "vllm": "its tokenizer.json is missing or not understood: the engine's log tells",
}
"""Where an engine of this kind could follow guides, but this one can't."""
_ENGINES_WITH_GUIDED_LENGTHS = ("transformers",)
"""The others would be left without any token where the guide asks for the end and min_length forbids it."""
_MOST_TOP_LOG_PROBS = 20
_GREEDY_TOP_K = 1
_MAX_SEQUENCES = 256
_SEEDS = 1 << 64


@dataclass(frozen=True)
class SlotRequest:
    """One row of a request, checked. ``request_id`` of ``submit`` is set by the slot."""

    submit: Submit
    is_streaming: bool
    includes_input: bool
    num_sequences: int = 1
    """How many outputs to answer with: drawn one by one, or the best of a beam search."""
    returns_times: bool = False

    @property
    def num_submits(self) -> int:
        """How many requests the engine gets for it: a beam search is one."""
        return self.num_sequences if self.submit.sampling.beam_width == 1 else 1

    def sequence(self, index: int) -> SlotRequest:
        """The request of one of several outputs: the seeds follow each other, as TensorRT-LLM has it."""
        seed = self.submit.sampling.seed
        if index == 0 or seed is None:
            return self
        sampling = msgspec.structs.replace(self.submit.sampling, seed=(seed + index) % _SEEDS)
        return replace(self, submit=msgspec.structs.replace(self.submit, sampling=sampling))


class Row:
    """One row of a batch: reads scalars and words from it."""

    def __init__(self, tensors: Tensors, index: int) -> None:
        self._tensors = tensors
        self._index = index

    def scalar(self, *names: str) -> Any | None:
        """The value of the first tensor present among ``names`` (aliases), as a Python scalar."""
        for name in names:
            if name in self._tensors:
                values = self._tensors[name][self._index].reshape(-1)
                if values.size != 1:
                    raise InvalidTensor(name=name, expected="one value per request", value=values.tolist())
                return values[0].item()
        return None

    def integer(self, *names: str, default: int, minimum: int) -> int:
        value = self.scalar(*names)
        if value is None:
            return default
        if value < minimum:
            raise InvalidTensor(name=names[0], expected=f"at least {minimum}", value=value)
        return int(value)

    def number(self, name: str, *, default: float, minimum: float = -math.inf) -> float:
        value = self.scalar(name)
        if value is None:
            return default
        if not math.isfinite(value) or value < minimum:
            floor = "" if minimum == -math.inf else f" of at least {minimum:g}"
            raise InvalidTensor(name=name, expected=f"a finite number{floor}", value=value)
        return float(value)

    def array(self, name: str) -> list[Any]:
        """Its values, as Python numbers; none where there is no such tensor."""
        return self._tensors[name][self._index].reshape(-1).tolist() if name in self._tensors else []

    def text(self, name: str) -> str | None:
        """A text of UTF-8; None where there is none or it is empty."""
        if name not in self._tensors:
            return None
        (value,) = self._tensors[name][self._index].reshape(-1)
        try:
            return value.decode() or None
        except UnicodeDecodeError as exc:
            raise InvalidTensor(name=name, expected="text in UTF-8", value=value) from exc

    def words(self, name: str, vocab_size: int) -> list[list[int]]:
        """Token sequences from a [2, L] tensor: flattened ids, and cumulative end offsets padded with -1."""
        if name not in self._tensors:
            return []
        tensor = self._tensors[name][self._index]
        if tensor.ndim != 2 or tensor.shape[0] != 2:
            raise InvalidTensor(name=name, expected="of shape [2, length]", value=list(tensor.shape))
        ids, offsets = tensor
        ends = [int(end) for end in offsets if end >= 0]
        if ends != sorted(ends) or (ends and ends[-1] > len(ids)):
            raise InvalidTensor(name=name, expected="rising end offsets within its length", value=ends)
        _check_ids(name, ids[: ends[-1] if ends else 0], vocab_size)
        starts = [0, *ends][:-1]
        return [ids[start:end].tolist() for start, end in zip(starts, ends, strict=True) if end > start]

    def tensors(self, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Those of the row that are given, as they are."""
        arrays = {
            name: np.ascontiguousarray(self._tensors[name][self._index])
            for name in names
            if name in self._tensors
        }
        return {
            name: Tensor(str(array.dtype), list(array.shape), array.tobytes())
            for name, array in arrays.items()
            if array.size
        }


def batch_size(tensors: Tensors) -> int:
    """Rows of the request; tensors that disagree are E1103."""
    sizes = {name: len(tensor) for name, tensor in tensors.items()}
    if len(set(sizes.values())) != 1:
        raise InvalidTensor(name="batch dimension", expected="the same in all tensors", value=sizes)
    return next(iter(sizes.values()))


def parse_row(tensors: Tensors, index: int, ready: Ready, *, includes_input: bool) -> SlotRequest:
    """Check one row. Raises E1002, E1103 or E1104; ``includes_input`` is the model's default."""
    row = Row(tensors, index)
    _refuse_unsupported(tensors, row, ready.engine_kind)
    input_ids = _input_ids(tensors, index, row, ready)
    requested = row.scalar("request_output_len")
    if requested is None or requested < 1:
        raise InvalidTensor(name="request_output_len", expected="at least 1", value=requested)
    # As TensorRT-LLM does: more than what the sequence has room for is cut, not refused.
    max_tokens = min(int(requested), ready.max_sequence_length - len(input_ids))
    end_id = row.scalar("end_id")
    submit = Submit(
        request_id=0,
        input_ids=input_ids,
        max_tokens=max_tokens,
        sampling=_sampling(row, ready.engine_kind),
        min_tokens=min(row.integer("min_length", "min_tokens", default=0, minimum=0), max_tokens),
        # NVIDIA's clients send another model's id if not told better: no token here, so it ends nothing.
        end_id=end_id if end_id is not None and 0 <= end_id < ready.vocab_size else None,
        pad_id=row.scalar("pad_id"),
        stop_words=row.words("stop_words_list", ready.vocab_size),
        bad_words=row.words("bad_words_list", ready.vocab_size),
        lora_task_id=row.scalar("lora_task_id"),
        tensors=row.tensors(_ENGINE_TENSORS),
        lora_name=_lora_name(row, ready.engine_kind),
        wants_log_probs=_wants_log_probs(row, ready.engine_kind),
        guide=_guide(row, ready),
        num_top_log_probs=_num_top_log_probs(row),
    )
    if submit.guide is not None:
        _refuse_beside_guide(submit, ready.engine_kind)
    excludes = row.scalar("exclude_input_in_output")
    is_streaming = bool(row.scalar("streaming"))
    if is_streaming and submit.sampling.beam_width > 1:
        raise UnsupportedArgument(
            name="streaming",
            value=True,
            engine_kind=ready.engine_kind,
            remedy="a beam search knows its output at the end only: send streaming=false",
        )
    return SlotRequest(
        submit=submit,
        is_streaming=is_streaming,
        includes_input=includes_input if excludes is None else not excludes,
        num_sequences=_num_sequences(row, submit.sampling.beam_width),
        returns_times=bool(row.scalar("return_perf_metrics")),
    )


def _num_sequences(row: Row, beam_width: int) -> int:
    most = beam_width if beam_width > 1 else _MAX_SEQUENCES
    # NOTE: without a number, all beams: as TensorRT-LLM has it.
    default = beam_width
    count = row.integer("num_return_sequences", default=default, minimum=0) or default
    if count > most:
        raise InvalidTensor(name="num_return_sequences", expected=f"at most {most}", value=count)
    return count


def _input_ids(tensors: Tensors, index: int, row: Row, ready: Ready) -> list[int]:
    if "input_ids" not in tensors:
        raise InvalidTensor(name="input_ids", expected="given", value=None)
    ids = tensors["input_ids"][index].reshape(-1)
    length = row.integer("input_lengths", default=len(ids), minimum=0)
    ids = ids[:length]
    if len(ids) == 0 or len(ids) < length:
        raise InvalidTensor(name="input_ids", expected=f"at least {max(length, 1)} tokens", value=len(ids))
    _check_ids("input_ids", ids, ready.vocab_size)
    if len(ids) >= ready.max_sequence_length:
        raise PromptTooLong(prompt_tokens=len(ids), max_input_tokens=ready.max_sequence_length - 1)
    result: list[int] = np.asarray(ids).tolist()
    return result


def _check_ids(name: str, ids: npt.NDArray[Any], vocab_size: int) -> None:
    wrong = ids[(ids < 0) | (ids >= vocab_size)]
    if wrong.size:
        raise InvalidTensor(name=name, expected=f"within 0..{vocab_size - 1}", value=int(wrong[0]))


def _sampling(row: Row, engine_kind: str) -> Sampling:
    top_k = row.integer("runtime_top_k", default=0, minimum=0)
    top_p = row.number("runtime_top_p", default=0.0)
    if top_p > 1:
        raise InvalidTensor(name="runtime_top_p", expected="at most 1", value=top_p)
    if top_k == 0 and top_p <= 0:
        top_k = _GREEDY_TOP_K  # As TensorRT-LLM does: neither given means greedy.
    seed = row.scalar("random_seed", "seed")
    beam_width = row.integer("beam_width", default=1, minimum=0) or 1
    return Sampling(
        temperature=row.number("temperature", default=1.0, minimum=0.0),
        top_k=top_k,
        top_p=top_p if top_p > 0 else 1.0,
        repetition_penalty=_positive(row, "repetition_penalty"),
        presence_penalty=row.number("presence_penalty", default=0.0),
        frequency_penalty=row.number("frequency_penalty", default=0.0),
        length_penalty=row.number("len_penalty", default=1.0),
        seed=None if seed is None else int(seed),
        min_p=_min_p(row, engine_kind),
        logit_bias=_logit_bias(row, engine_kind),
        top_p_min=row.scalar("runtime_top_p_min"),
        top_p_decay=row.scalar("runtime_top_p_decay"),
        top_p_reset_ids=row.scalar("runtime_top_p_reset_ids"),
        beam_width=beam_width,
        beam_search_diversity_rate=row.scalar("beam_search_diversity_rate") if beam_width > 1 else None,
        early_stopping=row.scalar("early_stopping") if beam_width > 1 else None,
    )


def _wants_log_probs(row: Row, engine_kind: str) -> bool:
    wanted = bool(row.scalar("return_log_probs"))
    if wanted and not honours(engine_kind, "log_probs"):
        raise _unsupported("return_log_probs", wanted, engine_kind)
    return wanted


def _num_top_log_probs(row: Row) -> int:
    count = row.integer("num_top_log_probs", default=0, minimum=0)
    if count > _MOST_TOP_LOG_PROBS:
        raise InvalidTensor(name="num_top_log_probs", expected=f"at most {_MOST_TOP_LOG_PROBS}", value=count)
    if count and not row.scalar("return_log_probs"):
        raise InvalidTensor(name="num_top_log_probs", expected="sent with return_log_probs=true", value=count)
    return count


def _min_p(row: Row, engine_kind: str) -> float:
    min_p = row.number("min_p", default=0.0, minimum=0.0)
    if min_p > 1:
        raise InvalidTensor(name="min_p", expected="at most 1", value=min_p)
    if min_p and not honours(engine_kind, "min_p"):
        raise _unsupported("min_p", min_p, engine_kind)
    return min_p


def _logit_bias(row: Row, engine_kind: str) -> dict[int, float]:
    """Of two tensors of one length: token ids, and what is added to their scores."""
    ids, values = row.array("logit_bias_ids"), row.array("logit_bias_values")
    if len(ids) != len(values):
        expected = f"as many as logit_bias_ids ({len(ids)})"
        raise InvalidTensor(name="logit_bias_values", expected=expected, value=len(values))
    if ids and not honours(engine_kind, "logit_bias"):
        raise _unsupported("logit_bias_ids", ids, engine_kind)
    return dict(zip(ids, values, strict=True))


def _lora_name(row: Row, engine_kind: str) -> str | None:
    name = row.text("lora_name")
    check_adapter_name(name, engine_kind)
    return name


def _guide(row: Row, ready: Ready) -> Guide | None:
    name, text = row.text("guided_decoding_guide_type"), row.text("guided_decoding_guide")
    if name is None:
        if text is not None:
            expected = f"one of {', '.join(GUIDE_TYPES)}, because there is a guided_decoding_guide"
            raise InvalidTensor(name="guided_decoding_guide_type", expected=expected, value=name)
        return None
    if name not in _GUIDE_TYPES:
        expected = f"one of {', '.join(GUIDE_TYPES)}"
        raise InvalidTensor(name="guided_decoding_guide_type", expected=expected, value=name)
    kind = ready.engine_kind
    if name not in ready.guide_types:
        remedy = _GUIDE_REMEDIES.get(kind, _NO_ENGINE_REMEDY)
        raise UnsupportedArgument(
            name="guided_decoding_guide_type", value=name, engine_kind=kind, remedy=remedy
        )
    if (text is None) != (name == "json"):
        expected = "left out with guided_decoding_guide_type json" if text else f"given, with the {name}"
        raise InvalidTensor(name="guided_decoding_guide", expected=expected, value=text)
    return Guide(_GUIDE_TYPES[name], text or "")


def _refuse_beside_guide(submit: Submit, engine_kind: str) -> None:
    if submit.sampling.beam_width > 1:
        remedy = "a beam search can't follow a guide: leave one of the two out"
        raise UnsupportedArgument(
            name="beam_width", value=submit.sampling.beam_width, engine_kind=engine_kind, remedy=remedy
        )
    if submit.min_tokens and engine_kind not in _ENGINES_WITH_GUIDED_LENGTHS:
        remedy = "beside a guide, which says where the output may end, leave it out"
        raise UnsupportedArgument(
            name="min_length", value=submit.min_tokens, engine_kind=engine_kind, remedy=remedy
        )


def _positive(row: Row, name: str) -> float:
    value = row.number(name, default=1.0)
    if value <= 0:
        raise InvalidTensor(name=name, expected="above 0", value=value)
    return value


def _refuse_unsupported(tensors: Tensors, row: Row, engine_kind: str) -> None:
    honoured = _HONOURED.get(engine_kind, frozenset())
    for name in _UNSUPPORTED_TENSORS:
        if name in tensors and name not in honoured:
            shape = "x".join(map(str, tensors[name].shape))
            raise _unsupported(name, f"<{shape} tensor>", engine_kind)
    for name in _UNSUPPORTED_SCALARS:
        if name not in honoured and (flag := row.scalar(name)):
            raise _unsupported(name, flag, engine_kind)
    for name in ("beam_width", "num_return_sequences"):
        if name not in honoured and (count := row.scalar(name)) not in (None, 0, 1):
            raise _unsupported(name, count, engine_kind)


def _unsupported(name: str, value: object, engine_kind: str) -> UnsupportedArgument:
    return UnsupportedArgument(name=name, value=value, engine_kind=engine_kind, remedy=_NO_ENGINE_REMEDY)
