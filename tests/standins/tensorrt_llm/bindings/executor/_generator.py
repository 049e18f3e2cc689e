"""What stands in for the engine: each request repeats its prompt, or draws tokens if it samples.

Greedy output: the prompt's tokens again and again, so that it is known in advance. Sampled output is
a function of seed and position. Both heed bad words of one token, ``min_tokens``, ``end_id``, stop words.
"""

from __future__ import annotations

import hashlib
from typing import Any

from ._request import Request
from ._result import CANCELLED, FinishReason, RequestPerfMetrics, Response, Result


class Sequence:
    """One request while it runs."""

    def __init__(self, request_id: int, request: Request, vocab_size: int, max_seq_len: int) -> None:
        self.request_id = request_id
        self.request = request
        self.max_tokens = min(request.max_tokens, max_seq_len - len(request.input_token_ids))
        self.output: list[int] = []
        self.sent = 0
        self.is_cancelled = False
        self.reused_blocks = 0
        self._vocab_size = vocab_size

    @property
    def num_tokens(self) -> int:
        return len(self.request.input_token_ids) + len(self.output)

    def step(self) -> Response | None:
        """Make a token; the response that it gives, if any."""
        if self.is_cancelled:
            return self._response([], CANCELLED)
        token = self._next_token()
        reason: Any = FinishReason.NOT_FINISHED
        # NOTE: the token that ends a sequence is no part of the output, a stop word is.
        if token == self.request.end_id:
            reason = FinishReason.END_ID
        else:
            self.output.append(token)
            reason = self._reason()
        is_over = reason is not FinishReason.NOT_FINISHED
        if not self.request.streaming:
            return self._response(self._whole(), reason) if is_over else None
        new, self.sent = self.output[self.sent :], len(self.output)
        return self._response(new, reason)

    def _whole(self) -> list[int]:
        excludes = self.request.output_config.exclude_input_from_output
        return [*([] if excludes else self.request.input_token_ids), *self.output]

    def _reason(self) -> FinishReason:
        early = len(self.output) < (self.request.sampling_config.min_tokens or 0)
        for word in self.request.stop_words or []:
            if not early and self.output[-len(word) :] == word:
                return FinishReason.STOP_WORDS
        return FinishReason.LENGTH if len(self.output) >= self.max_tokens else FinishReason.NOT_FINISHED

    def _next_token(self) -> int:
        forbidden = {word[0] for word in self.request.bad_words or [] if len(word) == 1}
        if len(self.output) < (self.request.sampling_config.min_tokens or 0):
            forbidden.add(self.request.end_id if self.request.end_id is not None else -1)
        token = self._wanted_token()
        while token in forbidden:
            token = (token + 1) % self._vocab_size
        return token

    def _wanted_token(self) -> int:
        sampling, prompt = self.request.sampling_config, self.request.input_token_ids
        if sampling.top_k == 1 or (not sampling.top_k and sampling.top_p is None):
            return prompt[len(self.output) % len(prompt)]
        seed = sampling.seed or 0  # NOTE: without a seed it is 0, every time.
        digest = hashlib.sha256(f"{seed} {len(self.output)}".encode()).digest()
        return int.from_bytes(digest[:4], "little") % self._vocab_size

    def _response(self, tokens: list[int], reason: Any) -> Response:
        result = Result()
        result.is_final = reason is not FinishReason.NOT_FINISHED
        width = self.request.sampling_config.beam_width
        # Beam n is the first with n added to each token; a cancelled request has beams without tokens.
        result.output_token_ids = [
            [(token + beam) % self._vocab_size for token in tokens] for beam in range(width)
        ]
        result.finish_reasons = [reason] * width
        if self.request.output_config.return_perf_metrics:
            result.request_perf_metrics = RequestPerfMetrics()
            result.request_perf_metrics.kv_cache_metrics.num_reused_blocks = self.reused_blocks
        if self.request.output_config.return_log_probs and reason is not CANCELLED:
            result.log_probs = [[-0.5] * len(self.output) for _ in range(width)]
        return Response(self.request_id, result)
