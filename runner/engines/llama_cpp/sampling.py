"""Sampling per request, without torch: the rules and the draws of ``runner.engines.transformers.sampling``.

The same scores, seed and position give the same token there and here, up to rounding.
"""

from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt

from errors.coded_error import CodedError
from runner.engines.protocol.messages import Sampling, TokenLogProb
from runner.engines.sequence import Sequence

_Scores = npt.NDArray[np.float32]
_Ids = npt.NDArray[np.int64]

# Enough for the nucleus of any trained model; for a flatter distribution the whole vocabulary is sorted.
_NUCLEUS_CANDIDATES = 1024


class Sampler:
    """Chooses tokens. It counts those of each sequence, for penalties."""

    def __init__(self) -> None:
        self._occurrences: WeakKeyDictionary[Sequence, _Occurrences] = WeakKeyDictionary()

    def choose(self, scores: _Scores, sequence: Sequence) -> int:
        """Choose the next token of ``sequence`` by ``scores`` [vocabulary], which are changed.

        A guide that fails sets ``sequence.error``; the token does not count then.
        """
        request = sequence.request
        log_probs = _log_softmax(scores) if request.wants_log_probs else None
        if logit_bias := request.sampling.logit_bias:
            scores[list(logit_bias)] += np.array(list(logit_bias.values()), np.float32)
        if request.sampling.has_penalties:
            if sequence not in self._occurrences:
                self._occurrences[sequence] = _Occurrences(sequence, len(scores))
            self._occurrences[sequence].penalize(scores, sequence)
        if sequence.follower is not None:
            try:
                scores[~sequence.guided(len(scores))] = -np.inf
            except CodedError as error:
                sequence.error = error
        else:
            scores[sequence.forbidden()] = -np.inf
        token = int(scores.argmax()) if request.sampling.is_greedy else draw(scores, sequence)
        if log_probs is not None:
            sequence.log_probs.append(_log_prob(log_probs, token, request.num_top_log_probs))
        return token


class _Occurrences:
    """Counts of each token in a sequence, updated with the new token of each step."""

    def __init__(self, sequence: Sequence, vocab_size: int) -> None:
        self._is_present = np.zeros(vocab_size, np.bool_)
        self._is_present[sequence.request.input_ids] = True
        self._in_output = np.zeros(vocab_size, np.float32)
        self._num_counted = 0

    def penalize(self, scores: _Scores, sequence: Sequence) -> None:
        sampling = sequence.request.sampling
        for token in sequence.tokens[len(sequence.request.input_ids) + self._num_counted :]:
            self._is_present[token] = True
            self._in_output[token] += 1
        self._num_counted = sequence.num_generated
        repetition = np.float32(sampling.repetition_penalty)
        repeated = np.where(scores < 0, scores * repetition, scores / repetition)
        np.copyto(scores, repeated, where=self._is_present)
        scores -= np.float32(sampling.presence_penalty) * (self._in_output > 0)
        scores -= np.float32(sampling.frequency_penalty) * self._in_output


def _log_softmax(scores: _Scores) -> _Scores:
    below = scores - scores.max()
    result: _Scores = below - np.float32(np.log(np.exp(below).sum(dtype=np.float64)))
    return result


def _log_prob(log_probs: _Scores, token: int, num_top: int) -> TokenLogProb:
    """Look a token up in ``log_probs`` [vocabulary] of the model's own distribution."""
    ids = _largest(log_probs, min(num_top, len(log_probs))) if num_top else np.empty(0, np.int64)
    return TokenLogProb(
        float(log_probs[token]), list(zip(ids.tolist(), log_probs[ids].tolist(), strict=True))
    )


def draw(scores: _Scores, sequence: Sequence) -> int:
    """Choose a token id by the sequence's sampling of ``scores`` [vocabulary]."""
    sampling = sequence.request.sampling
    # The maximum goes first: a tiny temperature then gives 0 and -inf, never inf - inf.
    logits = (scores - scores.max()) / np.float32(sampling.temperature)
    # As in vLLM, min_p comes before top_k and top_p.
    if sampling.min_p:
        logits[logits < np.log(np.float32(sampling.min_p))] = -np.inf
    if sampling.top_k or sampling.top_p < 1:
        values, ids = _truncate(logits, sampling)
    else:
        values, ids = logits, np.arange(len(logits), dtype=np.int64)
    return int(ids[(values + gumbel(sequence.draw_key, ids)).argmax()])


def _truncate(logits: _Scores, sampling: Sampling) -> tuple[_Scores, _Ids]:
    """Return the logits and token ids of the candidates that top_k and top_p leave.

    First top_k; then top_p keeps the smallest number of the most probable candidates, at least one, that
    together have this share of the remaining probability. Logits are at most 0.
    """
    width = min(sampling.top_k or _NUCLEUS_CANDIDATES, len(logits))
    while True:
        ids = _largest(logits, width)
        values = logits[ids]
        if sampling.top_p >= 1:
            return values, ids
        weights = np.exp(values.astype(np.float64))
        total = weights.sum() if sampling.top_k else np.exp(logits).sum(dtype=np.float64)
        is_kept = weights.cumsum() - weights < sampling.top_p * total
        is_kept[0] = True
        if sampling.top_k or width == len(logits) or not is_kept[-1]:
            return values[is_kept], ids[is_kept]
        width = len(logits)


def _largest(scores: _Scores, count: int) -> _Ids:
    """Return the ids of the largest scores, largest first."""
    ids = np.argpartition(-scores, count - 1)[:count]
    ordered: _Ids = ids[np.argsort(-scores[ids], kind="stable")]
    return ordered


def gumbel(key: int, ids: _Ids) -> _Scores:
    """Return Gumbel noise, float32 [candidates], a pure function of key and token id.

    A counter-based generator: SplitMix64's output function (Steele, Lea and Flood, 2014) over the key plus
    the id in golden-ratio steps.
    """
    bits = ids.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key % (1 << 64))
    bits = (bits ^ (bits >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    bits = (bits ^ (bits >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    bits = bits ^ (bits >> np.uint64(31))
    # 32 bits and log1p keep small values exact, which win most often; 1 itself would be infinite.
    whole = (bits >> np.uint64(32)).astype(np.float32)
    uniform = np.minimum(whole * np.float32(2.0**-32) + np.float32(2.0**-33), np.float32(1 - 2.0**-24))
    noise: _Scores = -np.log(-np.log1p(-uniform))
    return noise
