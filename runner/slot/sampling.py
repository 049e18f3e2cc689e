"""How a Triton request wants its tokens chosen, and what it wants to know of the choice."""

from __future__ import annotations

from errors.requests import InvalidTensor
from runner.engines.capabilities import honours
from runner.engines.protocol.messages import Sampling
from runner.slot.tensors import Row
from runner.slot.unsupported import unsupported

_MOST_TOP_LOG_PROBS = 20
_GREEDY_TOP_K = 1


def parse_sampling(row: Row, engine_kind: str) -> Sampling:
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


def wants_log_probs(row: Row, engine_kind: str) -> bool:
    wanted = bool(row.scalar("return_log_probs"))
    if wanted and not honours(engine_kind, "log_probs"):
        raise unsupported("return_log_probs", wanted, engine_kind)
    return wanted


def num_top_log_probs(row: Row) -> int:
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
        raise unsupported("min_p", min_p, engine_kind)
    return min_p


def _logit_bias(row: Row, engine_kind: str) -> dict[int, float]:
    """Of two tensors of one length: token ids, and what is added to their scores."""
    ids, values = row.array("logit_bias_ids"), row.array("logit_bias_values")
    if len(ids) != len(values):
        expected = f"as many as logit_bias_ids ({len(ids)})"
        raise InvalidTensor(name="logit_bias_values", expected=expected, value=len(values))
    if ids and not honours(engine_kind, "logit_bias"):
        raise unsupported("logit_bias_ids", ids, engine_kind)
    return dict(zip(ids, values, strict=True))


def _positive(row: Row, name: str) -> float:
    value = row.number(name, default=1.0)
    if value <= 0:
        raise InvalidTensor(name=name, expected="above 0", value=value)
    return value
