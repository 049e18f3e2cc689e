"""One request of the ``transformers`` engine: what it asks for, what it has generated, what ends it.

Pure Python, so that the rules for stop words, bad words and ``min_tokens`` stand apart from tensors.
"""

from __future__ import annotations

import math
import secrets
from collections import defaultdict
from typing import TYPE_CHECKING

from errors.coded_error import CodedError
from errors.requests import InvalidTensor, PromptTooLong, UnsupportedArgument
from runner.engines.protocol.messages import FinishReason, Ready, Sampling, Submit, TokenLogProb

if TYPE_CHECKING:
    from runner.engines.guides.compile import Follower, Mask

_SEED_BITS = 64


class Words:
    """Token sequences, found by their end, so that a step looks only at those that could match."""

    def __init__(self, words: list[list[int]]) -> None:
        self._single = sorted({word[0] for word in words if len(word) == 1})
        self._by_last: dict[int, list[list[int]]] = defaultdict(list)
        self._by_last_but_one: dict[int, list[list[int]]] = defaultdict(list)
        for word in words:
            self._by_last[word[-1]].append(word)
            if len(word) > 1:
                self._by_last_but_one[word[-2]].append(word)

    def end(self, tokens: list[int], start: int = 0) -> bool:
        """Whether ``tokens[start:]`` ends with one of the words."""
        candidates = self._by_last.get(tokens[-1], ()) if tokens else ()
        return any(_ends_with(tokens, word, start) for word in candidates)

    def completions(self, tokens: list[int], start: int = 0) -> list[int]:
        """The tokens that would complete a word after ``tokens[start:]``."""
        candidates = self._by_last_but_one.get(tokens[-1], ()) if tokens else ()
        return self._single + [word[-1] for word in candidates if _ends_with(tokens, word[:-1], start)]


def _ends_with(tokens: list[int], word: list[int], start: int) -> bool:
    return len(word) <= len(tokens) - start and tokens[-len(word) :] == word


class Sequence:
    """A request while it runs. ``tokens`` are prompt and output together."""

    def __init__(self, request: Submit, follower: Follower | None = None) -> None:
        """``follower``: of the request's guide."""
        self.request = request
        self.follower = follower
        self.error: CodedError | None = None
        """Why it can't go on: its guide, say. Set instead of ``finish_reason``."""
        self.tokens = list(request.input_ids)
        seed = request.sampling.seed
        self.seed = secrets.randbits(_SEED_BITS) if seed is None else seed
        self.is_cancelled = False
        self.finish_reason: FinishReason | None = None
        self._stop_words = Words(request.stop_words)
        self._bad_words = Words(request.bad_words)
        self.log_probs: list[TokenLogProb] = []
        """Of tokens chosen and not delivered yet, where the request wants them."""

    @property
    def num_generated(self) -> int:
        return len(self.tokens) - len(self.request.input_ids)

    def append(self, token: int) -> None:
        """Take the next output token; sets ``finish_reason`` if it is the last one."""
        self.tokens.append(token)
        if token == self.request.end_id:
            self.finish_reason = "end"
            return
        if self.follower is not None:
            self.follower.take(token)
        if self._stop_words.end(self.tokens, start=len(self.request.input_ids)):
            self.finish_reason = "stop"
        elif self.follower is not None and self.follower.is_complete:
            self.finish_reason = "end"
        elif self.num_generated >= self.request.max_tokens:
            self.finish_reason = "length"

    def forbidden(self) -> list[int]:
        """The tokens that must not come next.

        A bad word is found across the border of prompt and output, as TensorRT-LLM does; a stop word in the
        output alone. Before ``min_tokens`` are out, whatever would end generation is forbidden.
        """
        return self._bad_words.completions(self.tokens) + self._early_ends()

    def _early_ends(self) -> list[int]:
        if self.num_generated >= self.request.min_tokens:
            return []
        tokens = self._stop_words.completions(self.tokens, start=len(self.request.input_ids))
        return tokens if self.request.end_id is None else [*tokens, self.request.end_id]

    def guided(self, vocab_size: int) -> Mask:
        """The tokens that may come next, [vocab_size]: by the guide, and by ``forbidden``.

        Where the two leave nothing, ``min_tokens`` gives way. Raises GuideFailed.
        """
        assert self.follower is not None
        allowed, may_end = self.follower.allowed(vocab_size)
        if self.request.end_id is not None:
            allowed[self.request.end_id] = may_end
        bad_words = self._bad_words.completions(self.tokens)
        for forbidden in (bad_words + self._early_ends(), bad_words):
            left = allowed.copy()
            left[forbidden] = False
            if left.any():
                return left
        raise self.follower.failed("no token is left that it allows and bad_words_list does not forbid")


def check(request: Submit, ready: Ready) -> None:
    """Raise the coded error of a request that this engine can't run: E1002, E1103 or E1104."""
    vocabulary = f"token ids from 0 to {ready.vocab_size - 1}"
    if not request.input_ids:
        raise InvalidTensor(name="input_ids", expected="at least one token", value=[])
    _check_ids("input_ids", request.input_ids, vocabulary, ready)
    if request.end_id is not None:
        _check_ids("end_id", [request.end_id], vocabulary, ready)
    for name, words in (("stop_words_list", request.stop_words), ("bad_words_list", request.bad_words)):
        for word in words:
            if not word:
                raise InvalidTensor(name=name, expected="words of at least one token", value=word)
            _check_ids(name, word, vocabulary, ready)
    if request.sampling.logit_bias:
        _check_ids("logit_bias_ids", list(request.sampling.logit_bias), vocabulary, ready)
    _check_lengths(request, ready)
    _check_sampling(request.sampling, ready.engine_kind)


def _check_ids(name: str, ids: list[int], expected: str, ready: Ready) -> None:
    for extreme in (min(ids), max(ids)):
        if not 0 <= extreme < ready.vocab_size:
            raise InvalidTensor(name=name, expected=expected, value=extreme)


def _check_lengths(request: Submit, ready: Ready) -> None:
    room = ready.max_sequence_length - len(request.input_ids)
    if room < 1:
        raise PromptTooLong(
            prompt_tokens=len(request.input_ids), max_input_tokens=ready.max_sequence_length - 1
        )
    if not 1 <= request.max_tokens <= room:
        expected = (
            f"from 1 to {room} (this engine holds {ready.max_sequence_length} tokens a sequence, "
            f"of which the prompt takes {len(request.input_ids)})"
        )
        raise InvalidTensor(name="request_output_len", expected=expected, value=request.max_tokens)
    if request.min_tokens < 0:
        raise InvalidTensor(name="min_length", expected="at least 0", value=request.min_tokens)


def _check_sampling(sampling: Sampling, engine_kind: str) -> None:
    if sampling.length_penalty != 1.0:
        raise UnsupportedArgument(
            name="len_penalty",
            value=sampling.length_penalty,
            engine_kind=engine_kind,
            remedy="it belongs to beam search; leave it at 1.0",
        )
    for name, value, is_valid, expected in (
        ("temperature", sampling.temperature, sampling.temperature >= 0, "a finite number of at least 0"),
        ("runtime_top_k", sampling.top_k, sampling.top_k >= 0, "at least 0"),
        ("runtime_top_p", sampling.top_p, 0 <= sampling.top_p <= 1, "from 0 to 1"),
        ("min_p", sampling.min_p, 0 <= sampling.min_p <= 1, "from 0 to 1"),
        ("repetition_penalty", sampling.repetition_penalty, sampling.repetition_penalty > 0, "above 0"),
        ("presence_penalty", sampling.presence_penalty, True, "a finite number"),
        ("frequency_penalty", sampling.frequency_penalty, True, "a finite number"),
        *(("logit_bias_values", bias, True, "finite numbers") for bias in sampling.logit_bias.values()),
    ):
        if not (is_valid and math.isfinite(value)):
            raise InvalidTensor(name=name, expected=expected, value=value)
