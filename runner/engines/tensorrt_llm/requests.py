"""Conversion of a ``Submit`` to an executor ``Request``, and of the executor's errors to ours.

NOTE: the bindings take Python's numbers and lists (numpy's are a TypeError in some places) and torch tensors
on the CPU. Deprecated names (``max_new_tokens``, ``random_seed``, ``min_length``) log a warning at each
request.
"""

import re
import secrets
from typing import Any

from errors.coded_error import CodedError
from errors.engines import QueueFull, RequestRefused
from errors.requests import InvalidTensor, PromptTooLong, UnsupportedArgument
from runner.engines.protocol.messages import Guide, Ready, Sampling, Submit, Tensor

_SEED_BITS = 64
_NO_END = -1
_PREFIX = re.compile(r"\[TensorRT-LLM\]\[\w+\] *|Assertion failed: *")
_PLACE = re.compile(r" *\(/\S+:\d+\)")
_TOO_LONG = re.compile(r"Prompt length[^(]*\((\d+).*?maximum input length \((\d+)\)")
_QUEUE_FULL = re.compile(r"[Mm]aximum queue size of (\d+)")
_LOST_DEVICE = re.compile(r"CUDA (runtime |driver )?error|cudaError|NCCL error|illegal memory access", re.I)


def check(request: Submit, ready: Ready, prompt_limit: int, max_beam_width: int) -> None:
    """Check a request before it is given to the executor. Raises E1002, E1103 or E1104."""
    prompt_tokens = len(request.input_ids)
    if prompt_tokens > prompt_limit:
        raise PromptTooLong(prompt_tokens=prompt_tokens, max_input_tokens=prompt_limit)
    sampling = request.sampling
    if sampling.beam_width > max_beam_width:
        raise UnsupportedArgument(
            name="beam_width",
            value=sampling.beam_width,
            engine_kind=ready.engine_kind,
            remedy=f"its max_beam_width is {max_beam_width}",
        )
    for name, value, is_open in (
        ("runtime_top_p_min", sampling.top_p_min, False),
        ("runtime_top_p_decay", sampling.top_p_decay, True),
    ):
        if value is not None and not (0 <= value <= 1 and (value or not is_open)):
            expected = "above 0 and at most 1" if is_open else "from 0 to 1"
            raise InvalidTensor(name=name, expected=expected, value=value)
    reset_id = sampling.top_p_reset_ids
    if reset_id is not None and not 0 <= reset_id < ready.vocab_size:
        expected = f"within 0..{ready.vocab_size - 1}"
        raise InvalidTensor(name="runtime_top_p_reset_ids", expected=expected, value=reset_id)


def executor_request(bindings: Any, request: Submit, *, reuses_blocks: bool = False) -> Any:
    """Make the request. Raises TypeError or RuntimeError of the bindings for an invalid value."""
    is_beam_search = request.sampling.beam_width > 1
    return bindings.Request(
        request.input_ids,
        max_tokens=request.max_tokens,
        # NOTE: a streamed beam search would send all beams completely at each step.
        streaming=not is_beam_search,
        sampling_config=bindings.SamplingConfig(**_sampling(request)),
        # NOTE: otherwise a result that is not streamed begins with the prompt.
        output_config=bindings.OutputConfig(
            exclude_input_from_output=True, return_perf_metrics=reuses_blocks
        ),
        # NOTE: without an end id generation runs to max_tokens.
        end_id=_NO_END if request.end_id is None else request.end_id,
        pad_id=request.pad_id,
        bad_words=request.bad_words or None,
        stop_words=request.stop_words or None,
        guided_decoding_params=request.guide and _guided_decoding_params(bindings, request.guide),
        **_tensor_arguments(bindings, request),
    )


def _guided_decoding_params(bindings: Any, guide: Guide) -> Any:
    """Make the guide's parameters. NOTE: the executor's type names are NVIDIA's in capitals."""
    guide_type = getattr(bindings.GuidedDecodingParams.GuideType, guide.type.upper())
    return bindings.GuidedDecodingParams(guide_type, guide.text or None)


def _sampling(request: Submit) -> dict[str, Any]:
    """Return arguments of ``SamplingConfig``, without those that have their default."""
    sampling = request.sampling
    arguments: dict[str, Any] = {
        "beam_width": sampling.beam_width,
        "min_tokens": request.min_tokens or None,
        "repetition_penalty": _unless(sampling.repetition_penalty, 1.0),
        "presence_penalty": _unless(sampling.presence_penalty, 0.0),
        "frequency_penalty": _unless(sampling.frequency_penalty, 0.0),
    }
    if sampling.beam_width > 1:
        arguments |= {
            # NOTE: the library's default is 0, the slot's is 1.
            "length_penalty": sampling.length_penalty,
            "beam_search_diversity_rate": sampling.beam_search_diversity_rate,
            "early_stopping": None if sampling.early_stopping is None else int(sampling.early_stopping),
        }
    else:
        arguments |= _choice(sampling)
    return {name: value for name, value in arguments.items() if value is not None}


def _choice(sampling: Sampling) -> dict[str, Any]:
    if sampling.is_greedy:
        return {"top_k": 1}
    return {
        "top_k": sampling.top_k or None,
        # NOTE: 0 is refused, and neither top_k nor top_p means greedy: sampling from all is top_p = 1.
        "top_p": sampling.top_p if sampling.top_p < 1 or not sampling.top_k else None,
        "top_p_min": sampling.top_p_min,
        "top_p_decay": sampling.top_p_decay,
        "top_p_reset_ids": sampling.top_p_reset_ids,
        "temperature": _unless(sampling.temperature, 1.0),
        # NOTE: the library's default is 0, which generates the same text every time.
        "seed": secrets.randbits(_SEED_BITS) if sampling.seed is None else sampling.seed,
    }


def _unless(value: float, default: float) -> float | None:
    return None if value == default else value


def _tensor_arguments(bindings: Any, request: Submit) -> dict[str, Any]:
    tensors, arguments = request.tensors, {}
    if "embedding_bias" in tensors:
        arguments["embedding_bias"] = _torch(tensors["embedding_bias"]).squeeze()
    if request.lora_task_id is not None:
        parts = {"weights": "lora_weights", "config": "lora_config"}
        given = {key: _torch(tensors[name]) for key, name in parts.items() if name in tensors}
        arguments["lora_config"] = bindings.LoraConfig(request.lora_task_id, **given)
    if "prompt_embedding_table" in tensors:
        table = {"embedding_table": _torch(tensors["prompt_embedding_table"])}
        if "prompt_table_extra_ids" in tensors:
            extra_ids = _torch(tensors["prompt_table_extra_ids"]).tolist()
            table["input_token_extra_ids"] = extra_ids[: len(request.input_ids)]
        arguments["prompt_tuning_config"] = bindings.PromptTuningConfig(**table)
    if "draft_input_ids" in tensors:
        draft = {"tokens": _torch(tensors["draft_input_ids"]).tolist()}
        if "draft_logits" in tensors:
            draft["logits"] = _torch(tensors["draft_logits"])
        if "draft_acceptance_threshold" in tensors:
            draft["acceptance_threshold"] = _torch(tensors["draft_acceptance_threshold"]).item()
        arguments["external_draft_tokens_config"] = bindings.ExternalDraftTokensConfig(**draft)
    return arguments


def _torch(tensor: Tensor) -> Any:
    """Return a torch tensor that owns its memory."""
    import numpy as np
    import torch

    array = np.frombuffer(tensor.data, dtype=tensor.dtype).reshape(tensor.shape)
    # NOTE: torch has little support for uint64; the ids in such tensors are small.
    return torch.from_numpy(array.astype(np.int64) if array.dtype == np.uint64 else array.copy())


def coded(text: str) -> CodedError:
    """Return our error for the library's message about one request."""
    if (lengths := _TOO_LONG.search(text)) is not None:
        return PromptTooLong(prompt_tokens=int(lengths[1]), max_input_tokens=int(lengths[2]))
    if (limit := _QUEUE_FULL.search(text)) is not None:
        return QueueFull(max_queue_size=int(limit[1]))
    return RequestRefused(reason=sentence(text))


def is_device_lost(text: str) -> bool:
    """Return True if the device can't compute anything any more."""
    return _LOST_DEVICE.search(text) is not None


def sentence(text: str) -> str:
    """Return the library's message without its prefixes, source places and stack."""
    first = _PLACE.sub("", _PREFIX.sub("", text)).strip().splitlines()
    return first[0] if first else "no reason given"
