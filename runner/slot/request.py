"""From the tensors of a Triton request to engine messages: the slot's side of the tensor contract.

The contract is that of NVIDIA's TensorRT-LLM backend (model ``tensorrt_llm``); later names
(``min_tokens``, ``seed``) are accepted beside the earlier ones (``min_length``, ``random_seed``).
Nothing is dropped silently: what no engine here can honour is E1104, a bad value E1103.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import msgspec
import numpy as np

from errors.requests import InvalidTensor, PromptTooLong, UnsupportedArgument
from runner.engines.adapter_name import check_adapter_name
from runner.engines.protocol.messages import SEEDS, Ready, Submit
from runner.slot.guide import parse_guide, refuse_beside_guide
from runner.slot.sampling import num_top_log_probs, parse_sampling, wants_log_probs
from runner.slot.tensors import Row, Tensors, check_ids
from runner.slot.unsupported import ENGINE_TENSORS, refuse_unsupported

_MAX_SEQUENCES = 256


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
        sampling = msgspec.structs.replace(self.submit.sampling, seed=(seed + index) % SEEDS)
        return replace(self, submit=msgspec.structs.replace(self.submit, sampling=sampling))


def parse_row(tensors: Tensors, index: int, ready: Ready, *, includes_input: bool) -> SlotRequest:
    """Check one row. Raises E1002, E1103 or E1104; ``includes_input`` is the model's default."""
    row = Row(tensors, index)
    refuse_unsupported(tensors, row, ready.engine_kind)
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
        sampling=parse_sampling(row, ready.engine_kind),
        min_tokens=min(row.integer("min_length", "min_tokens", default=0, minimum=0), max_tokens),
        # NVIDIA's clients send another model's id if not told better: no token here, so it ends nothing.
        end_id=end_id if end_id is not None and 0 <= end_id < ready.vocab_size else None,
        pad_id=row.scalar("pad_id"),
        stop_words=row.words("stop_words_list", ready.vocab_size),
        bad_words=row.words("bad_words_list", ready.vocab_size),
        lora_task_id=row.scalar("lora_task_id"),
        tensors=row.tensors(ENGINE_TENSORS),
        lora_name=_lora_name(row, ready.engine_kind),
        wants_log_probs=wants_log_probs(row, ready.engine_kind),
        guide=parse_guide(row, ready),
        num_top_log_probs=num_top_log_probs(row),
    )
    if submit.guide is not None:
        refuse_beside_guide(submit, ready.engine_kind)
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
    check_ids("input_ids", ids, ready.vocab_size)
    if len(ids) >= ready.max_sequence_length:
        raise PromptTooLong(prompt_tokens=len(ids), max_input_tokens=ready.max_sequence_length - 1)
    result: list[int] = np.asarray(ids).tolist()
    return result


def _lora_name(row: Row, engine_kind: str) -> str | None:
    name = row.text("lora_name")
    check_adapter_name(name, engine_kind)
    return name
