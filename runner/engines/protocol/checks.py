"""Refusals of requests that an engine can't run: wrong ids, lengths or sampling, what its kind lacks."""

import math
from collections.abc import Sequence

from engine.kinds import KINDS, Capability, argument_remedy, find_kind, supports
from errors.engines import EngineAsleep
from errors.requests import (
    ImageRefused,
    ImagesUnsupported,
    InvalidGuide,
    InvalidTensor,
    PromptTooLong,
    UnsupportedArgument,
    UnsupportedOrder,
    WrongTask,
)
from runner.engines.protocol.messages import (
    Guide,
    GuideType,
    LoadAdapter,
    Order,
    Ready,
    Sampling,
    Submit,
    UnloadAdapter,
)

MAX_WORDS = 128
"""Limit of words in a stop or bad words list. NVIDIA's preprocessing makes two of each word."""
MAX_WORD_TOKENS = 4096
MAX_LOGIT_BIASES = 1024
MAX_TOP_LOG_PROBS = 20
MAX_LORA_NAME = 256
MAX_IMAGES = 32
"""Limit of images of a request."""
MAX_CACHE_SALT = 1024
"""Characters, as for ``MAX_LORA_NAME``."""
_MAX_GUIDE_BYTES: dict[GuideType, int] = {
    "json_schema": 1 << 16,
    "regex": 1 << 14,
    "ebnf_grammar": 1 << 14,
    "chat_form": 1 << 17,
}
"""Limits of a guide's text. Compiling it has limits of its own (``runner/engines/guides``)."""

_ACTIONS: dict[Capability, str] = {"load_adapter": "load LoRA adapters while it serves", "sleep": "sleep"}
NO_CHAT_FORM = "calls of tools and reasoning are enforced by the kinds transformers, llama_cpp and vllm alone"


def check_request(request: Submit, ready: Ready, extremes: tuple[int, int] | None = None) -> None:
    """Check a request in the engine server, for every kind. Raises E1002, E1011, E1103, E1104 or E2114.

    ``extremes``: the lowest and the highest input id, if they are known.
    """
    if ready.is_asleep:
        raise EngineAsleep
    check_task(embeds=request.embeds, is_embedding=ready.is_embedding)
    if request.images:
        check_images(len(request.images), ready.engine_kind, ready.max_images)
    if not request.input_ids:
        raise InvalidTensor(name="input_ids", expected="at least one token", value=[])
    _check_ids("input_ids", extremes or request.input_ids, ready)
    if request.end_id is not None:
        _check_ids("end_id", [request.end_id], ready)
    for name, words in (("stop_words_list", request.stop_words), ("bad_words_list", request.bad_words)):
        if len(words) > MAX_WORDS:
            raise InvalidTensor(name=name, expected=f"at most {MAX_WORDS} words", value=words)
        for word in words:
            if not 1 <= len(word) <= MAX_WORD_TOKENS:
                expected = f"words of at least one token and at most {MAX_WORD_TOKENS}"
                raise InvalidTensor(name=name, expected=expected, value=word)
            _check_ids(name, word, ready)
    if request.sampling.logit_bias:
        _check_ids("logit_bias_ids", list(request.sampling.logit_bias), ready)
    _check_lengths(request, ready)
    check_sampling(request.sampling)
    _check_supported(request, ready)
    if request.guide is not None:
        check_guide(request.guide)


def check_task(*, embeds: bool, is_embedding: bool) -> None:
    """Raise E1011 if a model is asked to do what it can't."""
    if embeds and not is_embedding:
        remedy = "serve an embedding model, one with sentence-transformers' modules.json"
        raise WrongTask(model_task="generates text and makes no embeddings", remedy=remedy)
    if is_embedding and not embeds:
        remedy = "send its input to /v1/embeddings"
        raise WrongTask(model_task="makes embeddings and generates no text", remedy=remedy)


def check_images(count: int, engine_kind: str, max_images: int, name: str = "The last of the images") -> None:
    """Raise E1016 if an engine takes no images, and E1017 for more than a request may have.

    ``name``: the place of one of them, for errors.
    """
    if not max_images:
        able = " or ".join(kind for kind in KINDS if supports(kind, "images"))
        is_able = supports(engine_kind, "images")
        reason = f"the {'model' if is_able else f'{engine_kind} engine'} takes none"
        remedy = "send text alone, or serve a model with images"
        remedy += "" if is_able else f" by an engine of the kind {able}"
        raise ImagesUnsupported(name=name, reason=reason, remedy=remedy)
    if count > max_images:
        reason = f"a request may have {max_images} images, and has {count}"
        raise ImageRefused(name=name, reason=reason, remedy="send fewer")


def check_order(order: Order, ready: Ready) -> None:
    """Raise E1013 for an order that this engine can't carry out, and E2114 for an adapter while it sleeps."""
    if isinstance(order, LoadAdapter | UnloadAdapter):
        check_orders(ready.engine_kind, "load_adapter", is_enabled=ready.max_adapters > 0)
        if ready.is_asleep and isinstance(order, LoadAdapter):
            raise EngineAsleep  # NOTE: vLLM copies it to memory that is not there, which ends the core.
    else:
        check_orders(ready.engine_kind, "sleep", is_enabled=ready.can_sleep)


def check_orders(engine_kind: str, capability: Capability, *, is_enabled: bool = True) -> None:
    """Raise E1013 if the kind lacks the capability, or the engine was built without it."""
    remedy = argument_remedy(engine_kind, capability)
    if not supports(engine_kind, capability):
        able = " or ".join(name for name in KINDS if supports(name, capability))
        remedy = f"serve an engine of the kind {able}"
    elif is_enabled:
        return
    action = _ACTIONS[capability]
    raise UnsupportedOrder(engine_kind=engine_kind, action=action, remedy=remedy)


def check_guide(guide: Guide) -> None:
    """Raise E1105 for a guide that is too long to be compiled."""
    check_guide_length(guide.type, len(guide.text))
    check_guide_length(guide.type, len(guide.text.encode(errors="replace")))


def check_guide_length(guide_type: GuideType, num_bytes: int) -> None:
    """Raise E1105 if a text is too long. ``num_bytes``: the length of the text, or a part of it."""
    most = _MAX_GUIDE_BYTES.get(guide_type, 0)
    if num_bytes > most:
        shorter = "send fewer tools or shorter schemas" if guide_type == "chat_form" else "make it shorter"
        reason = f"it has more than {most} bytes; {shorter}"
        raise InvalidGuide(guide_type=guide_type, reason=reason)


def _check_supported(request: Submit, ready: Ready) -> None:
    """Raise E1104 unless engines of this kind support what the request asks for, alone and together."""
    kind, sampling = ready.engine_kind, request.sampling
    needed: tuple[tuple[Capability, str, object], ...] = (
        ("log_probs", "return_log_probs", request.wants_log_probs),
        ("min_p", "min_p", sampling.min_p),
        ("logit_bias", "logit_bias_ids", list(sampling.logit_bias)),
        ("lora_name", "lora_name", request.lora_name),
        ("cache_salt", "cache_salt", request.cache_salt and "given"),  # It may be secret.
    )
    for capability, name, value in needed:
        if value and not supports(kind, capability):
            raise _unsupported(name, value, kind)
    if request.priority and not ready.takes_priority:
        raise _unsupported("priority", request.priority, kind)
    if sampling.length_penalty != 1.0 and "beam_width" not in find_kind(kind).tensors:
        remedy = "it belongs to beam search; leave it at 1.0"
        raise _unsupported("len_penalty", sampling.length_penalty, kind, remedy)
    guide = request.guide
    if guide is None:
        return
    if guide.type not in ready.guide_types:
        reason = NO_CHAT_FORM if guide.type == "chat_form" and ready.guide_types else None
        raise _unsupported("guided_decoding_guide_type", guide.type, kind, reason)
    if sampling.beam_width > 1:
        remedy = "a beam search can't follow a guide: leave one of the two out"
        raise _unsupported("beam_width", sampling.beam_width, kind, remedy)
    if request.min_tokens and not supports(kind, "guided_min_length"):
        remedy = "leave it out with a guide, which determines where the output may end"
        raise _unsupported("min_length", request.min_tokens, kind, remedy)


def _unsupported(
    name: str, value: object, engine_kind: str, remedy: str | None = None
) -> UnsupportedArgument:
    remedy = remedy or argument_remedy(engine_kind, name)
    return UnsupportedArgument(name=name, value=value, engine_kind=engine_kind, remedy=remedy)


def check_sampling(sampling: Sampling) -> None:
    """Raise E1103 for a parameter that is not a finite number within its bounds."""
    if len(sampling.logit_bias) > MAX_LOGIT_BIASES:
        expected = f"at most {MAX_LOGIT_BIASES} token ids"
        raise InvalidTensor(name="logit_bias_ids", expected=expected, value=sampling.logit_bias)
    for name, value, is_valid, expected in (
        ("temperature", sampling.temperature, sampling.temperature >= 0, "a finite number of at least 0"),
        ("runtime_top_k", sampling.top_k, sampling.top_k >= 0, "at least 0"),
        ("runtime_top_p", sampling.top_p, 0 <= sampling.top_p <= 1, "from 0 to 1"),
        ("min_p", sampling.min_p, 0 <= sampling.min_p <= 1, "from 0 to 1"),
        ("repetition_penalty", sampling.repetition_penalty, sampling.repetition_penalty > 0, "above 0"),
        ("presence_penalty", sampling.presence_penalty, True, "a finite number"),
        ("frequency_penalty", sampling.frequency_penalty, True, "a finite number"),
        ("len_penalty", sampling.length_penalty, True, "a finite number"),
        ("beam_search_diversity_rate", sampling.beam_search_diversity_rate or 0, True, "a finite number"),
        *(("logit_bias_values", bias, True, "finite numbers") for bias in sampling.logit_bias.values()),
    ):
        if not (is_valid and math.isfinite(value)):
            raise InvalidTensor(name=name, expected=expected, value=value)


def _check_ids(name: str, ids: Sequence[int], ready: Ready) -> None:
    for extreme in (min(ids), max(ids)):
        if not 0 <= extreme < ready.vocab_size:
            expected = f"token ids from 0 to {ready.vocab_size - 1}"
            raise InvalidTensor(name=name, expected=expected, value=extreme)


def _check_lengths(request: Submit, ready: Ready) -> None:
    longest = ready.max_sequence_length - (not request.embeds)
    if len(request.input_ids) > longest:
        raise PromptTooLong(prompt_tokens=len(request.input_ids), max_input_tokens=longest)
    if request.embeds:
        return
    room = ready.max_sequence_length - len(request.input_ids)
    if not 1 <= request.max_tokens <= room:
        expected = (
            f"from 1 to {room} (this engine holds {ready.max_sequence_length} tokens a sequence, "
            f"of which the prompt takes {len(request.input_ids)})"
        )
        raise InvalidTensor(name="request_output_len", expected=expected, value=request.max_tokens)
    if request.min_tokens < 0:
        raise InvalidTensor(name="min_length", expected="at least 0", value=request.min_tokens)
