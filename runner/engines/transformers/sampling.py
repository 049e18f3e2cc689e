"""Sampling per request, as a logits processor of continuous batching.

The library takes the argmax of the processed scores. For a sampled request the token is drawn here, and its
score is raised above all others. A draw is Gumbel-max with noise that depends only on seed, position and
token id, not on the rest of the batch, the device, or the number of candidates.

Penalties apply to the raw scores, before the temperature, as in ``generate``, vLLM and OpenAI's definition:
repetition divides positive and multiplies negative scores of each token of prompt and output; presence (once)
and frequency (per occurrence) are subtracted from tokens of the output.
"""

from collections.abc import Mapping
from weakref import WeakKeyDictionary

import torch
from transformers.generation.continuous_batching.cb_logits_processors import ContinuousBatchingLogitsProcessor
from transformers.generation.continuous_batching.requests import FutureRequestState

from errors.coded_error import CodedError
from runner.engines.protocol.messages import Sampling, TokenLogProb
from runner.engines.sequence import Sequence

# Enough for the nucleus of any trained model; for a flatter distribution the whole vocabulary is sorted.
# Sorting 128,000 tokens costs more than all other sampling.
_NUCLEUS_CANDIDATES = 1024


class SamplingProcessor(ContinuousBatchingLogitsProcessor):  # type: ignore[misc]
    """A processor that applies each request's ``Sampling`` to its row of scores.

    NOTE: the rows of a step are kept between ``prepare_tensor_args`` and the call. So asynchronous batching
    must be off: it prepares the next step before the tokens of this one are known.
    """

    supported_kwargs: Mapping[str, type] = {}
    ignored_kwargs: tuple[str, ...] = ()

    def __init__(self, running: Mapping[str, Sequence], *, is_deferred: bool = False) -> None:
        """Initialize. ``is_deferred``: the call by the library only keeps the scores in ``seen``."""
        self._running = running
        self._is_deferred = is_deferred
        self._rows: list[Sequence] = []
        self._occurrences: WeakKeyDictionary[Sequence, _Occurrences] = WeakKeyDictionary()
        self.seen: list[torch.Tensor] = []

    @property
    def count(self) -> int:
        """Return the number of requests with a new token in this step."""
        return len(self._rows)

    def fill_defaults(self, int32_tensor: torch.Tensor) -> None:
        int32_tensor.zero_()

    def prepare_tensor_args(self, requests_with_new_token: list[FutureRequestState]) -> torch.Tensor:
        # NOTE: the library warms up with requests of its own.
        states = (request.state.request_id for request in requests_with_new_token)
        self._rows = [self._running[key] for key in states if key in self._running]
        return torch.empty(0, dtype=torch.int32)

    def __call__(self, scores: torch.Tensor, tensor_arg: torch.Tensor) -> torch.Tensor:
        """Change ``scores`` [rows, vocabulary] float32 in place.

        NOTE: there are more rows than requests with a new token while a prompt is processed in parts; the
        library ignores the results of the others.
        """
        if self._is_deferred:
            self.seen.append(scores)
            return scores
        return self.choose(scores)

    def is_choosing(self) -> bool:
        """Return True if any request of this step wants another token than the most probable one."""
        return any(
            not sequence.request.sampling.is_greedy
            or sequence.request.sampling.has_penalties
            or sequence.follower is not None
            or sequence.request.sampling.logit_bias
            or sequence.request.wants_log_probs
            or sequence.forbidden()
            for sequence in self._rows
        )

    def choose(self, scores: torch.Tensor) -> torch.Tensor:
        """Change ``scores`` so that the largest score of each row is that of its token."""
        seen = {
            row: scores[row].log_softmax(-1)
            for row, sequence in enumerate(self._rows)
            if sequence.request.wants_log_probs
        }
        for row, sequence in enumerate(self._rows):
            if logit_bias := sequence.request.sampling.logit_bias:
                scores[row, list(logit_bias)] += scores.new_tensor(list(logit_bias.values()))
            if sequence.request.sampling.has_penalties:
                if sequence not in self._occurrences:
                    self._occurrences[sequence] = _Occurrences(sequence, scores[row])
                self._occurrences[sequence].penalize(scores[row], sequence)
            if sequence.follower is not None:
                _guide(scores[row], sequence)
        _forbid(scores, [[] if sequence.follower else sequence.forbidden() for sequence in self._rows])
        rows = [row for row, sequence in enumerate(self._rows) if not sequence.request.sampling.is_greedy]
        if rows:
            tokens = draw(scores[rows], [self._rows[row] for row in rows])
            scores[rows, tokens] = torch.inf
        for row, log_probs in seen.items():
            sequence = self._rows[row]
            token = int(scores[row].argmax())
            sequence.log_probs.append(_log_prob(log_probs, token, sequence.request.num_top_log_probs))
        return scores


def _log_prob(log_probs: torch.Tensor, token: int, num_top: int) -> TokenLogProb:
    """Look a token up in ``log_probs`` [vocabulary] of the model's own distribution."""
    values, ids = log_probs.topk(min(num_top, log_probs.shape[-1]))
    return TokenLogProb(float(log_probs[token]), list(zip(ids.tolist(), values.tolist(), strict=True)))


class _Occurrences:
    """Counts of each token in a sequence, updated with the new token of each step."""

    def __init__(self, sequence: Sequence, scores: torch.Tensor) -> None:
        self._is_present = torch.zeros_like(scores, dtype=torch.bool)
        self._is_present[sequence.request.input_ids] = True
        self._in_output = torch.zeros_like(scores)
        self._num_counted = 0

    def penalize(self, scores: torch.Tensor, sequence: Sequence) -> None:
        sampling = sequence.request.sampling
        for token in sequence.tokens[len(sequence.request.input_ids) + self._num_counted :]:
            self._is_present[token] = True
            self._in_output[token] += 1
        self._num_counted = sequence.num_generated
        repetition = sampling.repetition_penalty
        repeated = torch.where(scores < 0, scores * repetition, scores / repetition)
        torch.where(self._is_present, repeated, scores, out=scores)
        scores -= sampling.presence_penalty * (self._in_output > 0)
        scores -= sampling.frequency_penalty * self._in_output


def _guide(scores: torch.Tensor, sequence: Sequence) -> None:
    """Set ``scores`` [vocabulary] of tokens that the sequence's guide does not allow to -inf."""
    try:
        allowed = sequence.guided(len(scores))
    except CodedError as error:
        sequence.error = error  # The request ends after this step; the token of this step is dropped.
    else:
        scores.masked_fill_(torch.from_numpy(~allowed).to(scores.device), -torch.inf)


def _forbid(scores: torch.Tensor, tokens_per_row: list[list[int]]) -> None:
    rows = [row for row, tokens in enumerate(tokens_per_row) for _ in tokens]
    if rows:
        scores[rows, [token for tokens in tokens_per_row for token in tokens]] = -torch.inf


def draw(scores: torch.Tensor, sequences: list[Sequence]) -> torch.Tensor:
    """Choose one token id per row of ``scores`` [rows, vocabulary], by that row's sampling."""
    samplings = [sequence.request.sampling for sequence in sequences]
    temperature = scores.new_tensor([[sampling.temperature] for sampling in samplings])
    # The maximum goes first: a tiny temperature then gives 0 and -inf, never inf - inf.
    logits = (scores - scores.amax(dim=-1, keepdim=True)) / temperature
    # As in vLLM, min_p comes before top_k and top_p. The log of 0 is below all scores.
    logits.masked_fill_(logits < logits.new_tensor([[each.min_p] for each in samplings]).log(), -torch.inf)
    keys = torch.tensor([[sequence.draw_key] for sequence in sequences], device=scores.device)
    tokens = torch.empty(len(sequences), dtype=torch.long, device=scores.device)
    truncated = [row for row, sampling in enumerate(samplings) if sampling.top_k or sampling.top_p < 1]
    whole = [row for row, sampling in enumerate(samplings) if not (sampling.top_k or sampling.top_p < 1)]
    if truncated:
        values, ids = _truncate(logits[truncated], [samplings[row] for row in truncated])
        choice = (values + gumbel(keys[truncated], ids)).argmax(dim=-1, keepdim=True)
        tokens[truncated] = ids.gather(-1, choice).squeeze(-1)
    if whole:
        ids = torch.arange(logits.shape[-1], device=scores.device)
        tokens[whole] = (logits[whole] + gumbel(keys[whole], ids)).argmax(dim=-1)
    return tokens


def _truncate(logits: torch.Tensor, samplings: list[Sampling]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the candidates' logits, -inf for those that top_k or top_p leave out, and their token ids.

    First top_k; then top_p keeps the smallest number of the most probable candidates, at least one, that
    together have this share of the remaining probability. Logits are at most 0.
    """
    size = logits.shape[-1]
    is_top_k = logits.new_tensor([[bool(sampling.top_k)] for sampling in samplings], dtype=torch.bool)
    top_k = logits.new_tensor(
        [[min(sampling.top_k or size, size)] for sampling in samplings], dtype=torch.long
    )
    # 1.0 means no limit, also after rounding.
    top_p = logits.new_tensor(
        [[sampling.top_p if sampling.top_p < 1 else torch.inf] for sampling in samplings], dtype=torch.double
    )
    width = min(size, max(sampling.top_k or _NUCLEUS_CANDIDATES for sampling in samplings))
    while True:
        values, ids = logits.topk(width)
        rank = torch.arange(width, device=logits.device)
        weights = values.double().exp().masked_fill_(rank >= top_k, 0)
        # The candidates of a top_k row are complete; for others the rest of the vocabulary counts as well.
        total = torch.where(
            is_top_k, weights.sum(-1, keepdim=True), logits.exp().sum(-1, keepdim=True, dtype=torch.double)
        )
        is_kept = (rank < top_k) & (weights.cumsum(-1) - weights < top_p * total)
        is_kept[:, 0] = True
        if width == size or not (is_kept[:, -1:] & ~is_top_k).any():
            return values.masked_fill_(~is_kept, -torch.inf), ids
        width = size


def gumbel(keys: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """Return Gumbel noise, float32 [rows, candidates], a pure function of key [rows, 1] and token id.

    A counter-based generator: SplitMix64's output function (Steele, Lea and Flood, 2014) over the key plus
    the id in golden-ratio steps, in 64-bit arithmetic that wraps.
    """
    bits = ids * _signed(0x9E3779B97F4A7C15) + keys
    bits = (bits ^ _shift_right(bits, 30)) * _signed(0xBF58476D1CE4E5B9)
    bits = (bits ^ _shift_right(bits, 27)) * _signed(0x94D049BB133111EB)
    bits = bits ^ _shift_right(bits, 31)
    # 32 bits and log1p keep small values exact, which win most often; 1 itself would be infinite.
    uniform = (_shift_right(bits, 32).float() * 2.0**-32 + 2.0**-33).clamp_(max=1 - 2.0**-24)
    return -(-torch.log1p(-uniform)).log()


def _signed(constant: int) -> int:
    return constant - (1 << 64)


def _shift_right(bits: torch.Tensor, count: int) -> torch.Tensor:
    """Shift logically: torch has no unsigned 64-bit arithmetic, and ``>>`` copies the sign."""
    return (bits >> count) & ((1 << (64 - count)) - 1)
