"""Conversion of a ``Submit`` to vLLM's request, and the state of a running request."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from engine.pooling import Pooling
from errors.coded_error import CodedError
from errors.engines import EngineAsleep, VllmRequestFailed
from errors.requests import InvalidTensor, UnsupportedArgument
from runner.engines.guides.schemas import schema_in
from runner.engines.protocol import messages
from runner.engines.protocol.messages import Guide, Sampling, Submit, TokenLogProb
from runner.engines.protocol.words import Words
from runner.engines.vllm.arguments import ENGINE_KIND
from runner.engines.vllm.interface import (
    EngineCoreOutput,
    EngineCoreRequest,
    FinishReason,
    LoRARequest,
    PoolingParams,
    SamplingParams,
    StructuredOutputsParams,
    envs,
)

if TYPE_CHECKING:
    from runner.engines.vllm.interface import LogprobsLists

# vLLM's own limits. NOTE: vLLM checks stop ids and bad words only in the GPU process, where an error ends
# the whole engine and not the request (0.33.0, v1/worker/gpu/sample).
_MAX_TEMPERATURE = 2.0
_MAX_PENALTY = 2.0
_MAX_STOP_IDS = 128
_MAX_BAD_WORDS = envs.VLLM_MAX_NUM_BAD_WORDS
_MAX_BAD_WORD_TOKENS = envs.VLLM_MAX_BAD_WORDS_TOTAL_TOKENS
_MAX_SEED = (1 << 63) - 1
_GUIDE_BACKEND = "guidance"


def check_limits(request: Submit, guide_end_id: int | None, *, has_drafts: bool) -> None:
    """Raise E1103 or E1104 for a request that vLLM's front end would reject.

    ``guide_end_id``: see ``core_request``. ``has_drafts``: True if the engine speculates.
    """
    sampling = request.sampling
    min_p = 0.0 if sampling.is_greedy else sampling.min_p
    for name, value in (("min_p", min_p), ("logit_bias_ids", list(sampling.logit_bias))):
        if has_drafts and value:
            remedy = "leave it out, or build the engine without speculative_config: vLLM takes one of the two"
            raise UnsupportedArgument(name=name, value=value, engine_kind=ENGINE_KIND, remedy=remedy)
    for name, value, most in (
        ("presence_penalty", abs(sampling.presence_penalty), _MAX_PENALTY),
        ("frequency_penalty", abs(sampling.frequency_penalty), _MAX_PENALTY),
    ):
        if value > most:
            raise InvalidTensor(
                name=name, expected=f"from -{most:g} to {most:g}", value=getattr(sampling, name)
            )
    if not sampling.is_greedy and sampling.temperature > _MAX_TEMPERATURE:
        expected = f"at most {_MAX_TEMPERATURE:g}"
        raise InvalidTensor(name="temperature", expected=expected, value=sampling.temperature)
    for name, count, most, noun in (
        ("stop_words_list", len(_stop_ids(request, guide_end_id)), _MAX_STOP_IDS, "words of one token"),
        ("bad_words_list", len(request.bad_words), _MAX_BAD_WORDS, "words"),
        ("bad_words_list", sum(map(len, request.bad_words)), _MAX_BAD_WORD_TOKENS, "tokens"),
    ):
        if count > most:
            raise InvalidTensor(name=name, expected=f"at most {most} {noun}", value=f"{count}")


def core_request(
    request: Submit,
    lora: LoRARequest | None,
    guide_end_id: int | None = None,
    pooling: Pooling | None = None,
) -> EngineCoreRequest:
    """Make the engine core's request, without its guide. ``request`` is checked. If guided, it also ends at
    ``guide_end_id``."""
    return EngineCoreRequest(
        request_id=str(request.request_id),
        prompt_token_ids=request.input_ids,
        mm_features=None,
        sampling_params=None if pooling else _sampling_params(request, guide_end_id),
        pooling_params=None if pooling is None else _pooling_params(pooling),
        arrival_time=time.time(),
        lora_request=lora,
        cache_salt=request.cache_salt,
        data_parallel_rank=None,
        priority=request.priority,
    )


def _pooling_params(pooling: Pooling) -> PoolingParams:
    """Make the parameters. NOTE: vLLM's front end fills in these defaults; the engine core does not."""
    return PoolingParams(task="embed", use_activation=pooling.is_normalized, skip_reading_prefix_cache=False)


def _sampling_params(request: Submit, guide_end_id: int | None) -> SamplingParams:
    sampling = request.sampling
    parameters = SamplingParams(
        presence_penalty=sampling.presence_penalty,
        frequency_penalty=sampling.frequency_penalty,
        repetition_penalty=sampling.repetition_penalty,
        **_choice(sampling),
        # Only the request's end id and stop words end it, not the model's own end ids.
        ignore_eos=True,
        stop_token_ids=_stop_ids(request, guide_end_id),
        max_tokens=request.max_tokens,
        min_tokens=min(request.min_tokens, request.max_tokens),
        # 0: only the chosen token's.
        logprobs=request.num_top_log_probs if request.wants_log_probs else None,
        logit_bias=sampling.logit_bias or None,
        detokenize=False,
        skip_clone=True,
    )
    if request.bad_words:
        # NOTE: vLLM's public argument is text; this is the result of tokenizing it.
        parameters._bad_words_token_ids = request.bad_words
    return parameters


def _choice(sampling: Sampling) -> dict[str, float | int | None]:
    if sampling.is_greedy or sampling.top_p == 0:
        return {"temperature": 0.0}
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        # NOTE: seeds have 64 bits, vLLM's GPU code uses 63.
        "seed": None if sampling.seed is None else sampling.seed & _MAX_SEED,
    }


def token_log_probs(lists: LogprobsLists, count: int, num_top: int) -> list[TokenLogProb]:
    """Convert a step's first ``count`` tokens: in a row the chosen token, then the likeliest.

    NOTE: vLLM's rows are as long as the request of the batch that asks for the most needs.
    """
    part = slice(count), slice(1 + num_top)
    ids, values = lists.logprob_token_ids[part].tolist(), lists.logprobs[part].tolist()
    return [
        TokenLogProb(row[0], list(zip(row_ids[1:], row[1:], strict=True)))
        for row_ids, row in zip(ids, values, strict=True)
    ]


def failure(output: EngineCoreOutput) -> CodedError:
    """Return the error of a request that vLLM failed."""
    if output.error is None:
        return VllmRequestFailed(reason=str(output.finish_reason))
    # Only a request that came while vLLM fell asleep may be sent again.
    return EngineAsleep() if output.error.retryable else VllmRequestFailed(reason=output.error.message)


def drafted_tokens(output: EngineCoreOutput) -> tuple[int, int] | None:
    """Return the numbers of draft tokens of a request that were accepted and rejected; None without any."""
    if (counts := output.spec_decode_metrics) is None:
        return None
    accepted = sum(number * steps for number, steps in enumerate(counts.histogram))
    return accepted, counts.num_draft_tokens - accepted


def _stop_ids(request: Submit, guide_end_id: int | None = None) -> list[int]:
    ids = {word[0] for word in request.stop_words if len(word) == 1}
    ends = (request.end_id, guide_end_id if request.guide else None)
    return sorted(ids | {end_id for end_id in ends if end_id is not None})


def structured_outputs(guide: Guide, grammar: str) -> StructuredOutputsParams:
    """Make the parameters. ``grammar``: the compiled guide."""
    match guide:
        case Guide(type="json" | "json_schema"):
            parameters = StructuredOutputsParams(json=schema_in(grammar))
        case Guide(type="regex", text=text):
            parameters = StructuredOutputsParams(regex=text)
        case Guide(type="chat_form"):
            parameters = StructuredOutputsParams(grammar=grammar)
        case Guide(text=text):
            parameters = StructuredOutputsParams(grammar=text)
    # NOTE: the backend that also checked the guide. vLLM's own front end sets this attribute, too.
    parameters._backend = _GUIDE_BACKEND
    return parameters


class Running:
    """A running request."""

    __slots__ = (
        *("_end_ids", "_long_words", "_tokens"),
        *("aborted_for", "has_begun", "lora", "lora_name", "min_tokens", "num_top_log_probs"),
        *("prompt_tokens", "request_id"),
    )

    def __init__(
        self, request: Submit, guide_end_id: int | None = None, lora: LoRARequest | None = None
    ) -> None:
        self.request_id = request.request_id
        self.lora, self.lora_name = lora, request.lora_name
        self.has_begun = False
        """True once vLLM has computed its prompt."""
        self.prompt_tokens: tuple[int, ...] = ()
        """Number of tokens of a prompt with images, once these are prepared; empty without any."""
        self._end_ids = {request.end_id, guide_end_id if request.guide else None} - {None}
        self.min_tokens, self.num_top_log_probs = request.min_tokens, request.num_top_log_probs
        self.aborted_for: messages.FinishReason | None = None
        """Reason, if the request ends before vLLM ends it: cancelled, or at a stop word."""
        # vLLM supports stop words of one token. Longer ones are searched here.
        words = [word for word in request.stop_words if len(word) > 1]
        self._long_words = Words(words) if words else None
        self._tokens: list[int] = []

    def take(self, new: list[int]) -> tuple[list[int], bool]:
        """Return the new tokens up to a stop word of several tokens, and whether there was one.

        Before ``min_tokens`` are generated such a word has no effect, because vLLM can't forbid sequences.
        """
        if self._long_words is None:
            return new, False
        for index, token in enumerate(new, 1):
            self._tokens.append(token)
            if len(self._tokens) > self.min_tokens and self._long_words.end(self._tokens):
                return new[:index], True
        return new, False

    def reason(self, output: EngineCoreOutput) -> messages.FinishReason | None:
        """Return the finish reason; None for an error of vLLM."""
        match output.finish_reason:
            case FinishReason.LENGTH:
                return "length"
            case FinishReason.STOP:
                return "end" if output.stop_reason in self._end_ids else "stop"
        return None
