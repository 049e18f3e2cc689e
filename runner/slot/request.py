"""Conversion of a Triton request's tensors to engine messages: the slot's side of the tensor contract.

The contract is that of NVIDIA's TensorRT-LLM backend (model ``tensorrt_llm``). Later names (``min_tokens``,
``seed``) are accepted beside the earlier ones (``min_length``, ``random_seed``). Nothing is dropped silently:
an input that the engine does not support is E1104, an invalid value E1103.
"""

from dataclasses import dataclass
from typing import Any

import msgspec
import numpy.typing as npt

from engine.kinds import ENGINE_TENSORS, find_kind
from errors.requests import InvalidTensor, UnsupportedArgument
from runner.engines.protocol.checks import MAX_TOP_LOG_PROBS, check_request
from runner.engines.protocol.messages import GUIDE_TYPES, SEEDS, Guide, GuideType, Ready, Sampling, Submit
from runner.slot.rows import Row, Tensors
from runner.slot.unsupported import check_tensors

_MAX_SEQUENCES = 256
_GREEDY_TOP_K = 1
_GUIDE_TYPES: dict[str, GuideType] = {name: name for name in GUIDE_TYPES}


@dataclass(frozen=True)
class SlotRequest:
    """One row of a request, checked. The slot's model sets the ids of ``submit``."""

    submit: Submit
    is_streaming: bool
    includes_input: bool
    num_sequences: int = 1
    """The number of outputs: drawn one by one, or the best of a beam search."""

    def submits(self) -> list[Submit]:
        """Make a request for each output, with consecutive seeds as in TensorRT-LLM; one for all beams."""
        sampling = self.submit.sampling
        if self.num_sequences == 1 or sampling.beam_width > 1:
            return [self.submit]
        if sampling.seed is None:
            return [self.submit] * self.num_sequences
        seeds = ((sampling.seed + index) % SEEDS for index in range(self.num_sequences))
        samplings = [msgspec.structs.replace(sampling, seed=seed) for seed in seeds]
        return [msgspec.structs.replace(self.submit, sampling=each) for each in samplings]


def parse_row(tensors: Tensors, index: int, ready: Ready, *, includes_input: bool) -> SlotRequest:
    """Check one row. Raises E1002, E1103 or E1104; ``includes_input`` is the model's default."""
    row = Row(tensors, index)
    check_tensors(tensors, row, ready.engine_kind)
    input_ids = _input_ids(row)
    requested = row.scalar("request_output_len")
    if requested is None or requested < 1:
        raise InvalidTensor(name="request_output_len", expected="at least 1", value=requested)
    # As in TensorRT-LLM, a length beyond the room in the sequence is cut, not refused.
    max_tokens = min(int(requested), ready.max_sequence_length - len(input_ids))
    end_id = row.scalar("end_id")
    is_streaming = bool(row.scalar("streaming"))
    submit = Submit(
        request_id=0,
        input_ids=input_ids.tolist(),
        max_tokens=max_tokens,
        sampling=_sampling(row, ready.engine_kind),
        min_tokens=min(row.integer("min_length", "min_tokens", default=0), max_tokens),
        # NVIDIA's clients send another model's end id by default. It is no token here, so it ends nothing.
        end_id=end_id if end_id is not None and 0 <= end_id < ready.vocab_size else None,
        pad_id=row.scalar("pad_id"),
        stop_words=row.words("stop_words_list"),
        bad_words=row.words("bad_words_list"),
        lora_task_id=row.scalar("lora_task_id"),
        tensors=row.tensors(find_kind(ready.engine_kind).tensors.intersection(ENGINE_TENSORS)),
        lora_name=row.text("lora_name"),
        wants_log_probs=bool(row.scalar("return_log_probs")),
        guide=_guide(row),
        num_top_log_probs=_num_top_log_probs(row),
        returns_times=bool(row.scalar("return_perf_metrics")),
        collects_until=None if is_streaming else [],
    )
    # NOTE: also checked by the engine server, but here all rows of a request are rejected with one response.
    check_request(submit, ready, (int(input_ids.min()), int(input_ids.max())))
    if is_streaming and submit.sampling.beam_width > 1:
        remedy = "a beam search has no output before its end: send streaming=false"
        raise UnsupportedArgument(name="streaming", value=True, engine_kind=ready.engine_kind, remedy=remedy)
    excludes = row.scalar("exclude_input_in_output")
    return SlotRequest(
        submit=submit,
        is_streaming=is_streaming,
        includes_input=includes_input if excludes is None else not excludes,
        num_sequences=_num_sequences(row, submit.sampling.beam_width),
    )


def _input_ids(row: Row) -> npt.NDArray[Any]:
    ids = row.array("input_ids")
    length = row.integer("input_lengths", default=len(ids))
    if not 0 < length <= len(ids):
        found = min(len(ids), length)
        raise InvalidTensor(name="input_ids", expected=f"at least {max(length, 1)} tokens", value=found)
    return ids[:length]


def _sampling(row: Row, engine_kind: str) -> Sampling:
    top_k, top_p = row.scalar("runtime_top_k", default=0), row.scalar("runtime_top_p", default=0.0)
    if top_k == 0 and top_p <= 0:
        top_k = _GREEDY_TOP_K  # As in TensorRT-LLM: neither given means greedy.
    beam_width = row.integer("beam_width", default=1) or 1
    return Sampling(
        temperature=row.scalar("temperature", default=1.0),
        top_k=top_k,
        top_p=1.0 if top_p <= 0 else top_p,
        repetition_penalty=row.scalar("repetition_penalty", default=1.0),
        presence_penalty=row.scalar("presence_penalty", default=0.0),
        frequency_penalty=row.scalar("frequency_penalty", default=0.0),
        length_penalty=row.scalar("len_penalty", default=1.0),
        seed=row.scalar("random_seed", "seed"),
        min_p=row.scalar("min_p", default=0.0),
        logit_bias=_logit_bias(row, engine_kind),
        top_p_min=row.scalar("runtime_top_p_min"),
        top_p_decay=row.scalar("runtime_top_p_decay"),
        top_p_reset_ids=row.scalar("runtime_top_p_reset_ids"),
        beam_width=beam_width,
        beam_search_diversity_rate=row.scalar("beam_search_diversity_rate") if beam_width > 1 else None,
        early_stopping=row.scalar("early_stopping") if beam_width > 1 else None,
    )


def _logit_bias(row: Row, engine_kind: str) -> dict[int, float]:
    """Read two tensors of the same length, token ids and what is added to their scores; and NVIDIA's
    ``embedding_bias``, a number for each token, if engines of this kind do not take it as it is."""
    ids, values = row.array("logit_bias_ids").tolist(), row.array("logit_bias_values").tolist()
    if len(ids) != len(values):
        expected = f"as many as logit_bias_ids ({len(ids)})"
        raise InvalidTensor(name="logit_bias_values", expected=expected, value=len(values))
    biases = dict(zip(ids, values, strict=True))
    if "embedding_bias" not in find_kind(engine_kind).tensors:
        dense = row.array("embedding_bias")
        tokens = dense.nonzero()[0]
        biases |= dict(zip(tokens.tolist(), dense[tokens].tolist(), strict=True))
    return biases


def _num_top_log_probs(row: Row) -> int:
    count = row.integer("num_top_log_probs", default=0)
    if count > MAX_TOP_LOG_PROBS:
        raise InvalidTensor(name="num_top_log_probs", expected=f"at most {MAX_TOP_LOG_PROBS}", value=count)
    if count and not row.scalar("return_log_probs"):
        raise InvalidTensor(name="num_top_log_probs", expected="sent with return_log_probs=true", value=count)
    return count


def _num_sequences(row: Row, beam_width: int) -> int:
    most = beam_width if beam_width > 1 else _MAX_SEQUENCES
    # NOTE: as in TensorRT-LLM, the default is all beams.
    count = row.integer("num_return_sequences", default=0) or beam_width
    if count > most:
        raise InvalidTensor(name="num_return_sequences", expected=f"at most {most}", value=count)
    return count


def _guide(row: Row) -> Guide | None:
    name, text = row.text("guided_decoding_guide_type"), row.text("guided_decoding_guide")
    if name is None and text is None:
        return None
    if name not in _GUIDE_TYPES:
        expected = f"one of {', '.join(GUIDE_TYPES)}"
        if name is None:
            expected += ", because there is a guided_decoding_guide"
        raise InvalidTensor(name="guided_decoding_guide_type", expected=expected, value=name)
    if (text is None) != (name == "json"):
        expected = "left out with guided_decoding_guide_type json" if text else f"the text of the {name}"
        raise InvalidTensor(name="guided_decoding_guide", expected=expected, value=text)
    return Guide(_GUIDE_TYPES[name], text or "")
