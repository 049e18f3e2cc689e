"""The generation core: a checked request in, a stream of text out, with what is to be known of it after.

tokens (Triton) -> end cut -> Detokenizer -> StopFilter -> text. Leaving the stream early, for
whatever reason, closes the connection to Triton, which frees the engine's sequence.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Literal

from errors.prompt import PromptTooLong
from errors.triton_system import TritonUnavailable
from runner.detokenizer import Detokenizer
from runner.model_facts import ModelFacts
from runner.stop_filter import StopFilter
from runner.time_budget import TimeBudget, Untold
from runner.triton_client import Event, TritonClient

FinishReason = Literal["stop", "length", "end"]

_GREEDY = 1
_DEFAULTS = {
    "min_length": 0,
    "temperature": 1.0,
    "len_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}
"""Of the slot's tensors, by its contract."""
_MAX_INT32 = (1 << 31) - 1
"""Triton takes what is above it for something else: it drops the upper bits."""


@dataclass(frozen=True)
class SamplingInputs:
    """How to choose tokens, in the caller's terms. ``top_k`` below 1 and ``top_p`` of 0 are off."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    length_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int = 0

    @property
    def is_greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == _GREEDY or (self.top_k < 1 and self.top_p <= 0)


@dataclass(frozen=True)
class GenerationRequest:
    """A request whose inputs were checked one by one. Lengths are in tokens."""

    prompt: str
    max_tokens: int
    min_tokens: int
    stop_sequences: Sequence[str]
    sampling: SamplingInputs
    lora_name: str | None = None
    """An adapter of the engine; None: the model alone."""


class Generation:
    """One request on its way. Iterate ``text()`` once; then the attributes tell what happened."""

    def __init__(
        self,
        request: GenerationRequest,
        model: ModelFacts,
        client: TritonClient,
        *,
        tells_reason: bool = True,
        budget: TimeBudget | None = None,
        asks_slot: bool = False,
    ) -> None:
        """``asks_slot`` for the phases of ``budget`` that only the slot knows; ``tells_reason`` False: what
        fills the slot is not ours, and its last response has no finish reason."""
        self._tells_reason = tells_reason
        self._request = request
        self.budget = budget or TimeBudget(Untold())
        self._asks_slot = asks_slot
        self._model = model
        self._client = client
        self._end_ids = frozenset(model.end_ids)
        self._detokenizer = Detokenizer(model.tokenizer)
        self._stop = StopFilter(request.stop_sequences)
        self._started_s = time.perf_counter()
        self._first_token_s: float | None = None
        self._ended_s: float | None = None
        self.input_token_count = 0
        self.output_token_count = 0
        self.finish_reason: FinishReason | None = None

    @property
    def duration_s(self) -> float:
        """From the request to its last token, or to now."""
        return (self._ended_s or time.perf_counter()) - self._started_s

    @property
    def time_to_first_token_s(self) -> float | None:
        return None if self._first_token_s is None else self._first_token_s - self._started_s

    @property
    def tokens_per_second(self) -> float:
        return self.output_token_count / self.duration_s

    async def text(self) -> AsyncGenerator[str, None]:
        """Yield text as it becomes certain. Raises a CodedError, also after the first text."""
        inputs = await self._inputs()
        inputs |= self.budget.sent(asks_slot=self._asks_slot)
        try:
            async with aclosing(self._client.generate(inputs)) as batches:
                async for events in batches:
                    text = self._take(events)
                    if text:
                        yield text
                    if self._is_over():
                        break
            if not self._is_over() and not self._tells_reason:
                is_full = self.output_token_count >= self._request.max_tokens
                self.finish_reason = "length" if is_full else "end"
            if not self._is_over():
                raise TritonUnavailable(reason="its stream ended before the last token")
            self._ended_s = time.perf_counter()
            if rest := self._finish():
                yield rest
        finally:
            self.budget.closed()

    def _is_over(self) -> bool:
        return self.finish_reason is not None

    async def _inputs(self) -> dict[str, Any]:
        """The slot's tensors. Raises E1002 if the prompt leaves no room."""
        model, request, sampling = self._model, self._request, self._request.sampling
        start_s = time.perf_counter()
        input_ids = await model.encode(request.prompt)
        self.budget.tokenize_s = time.perf_counter() - start_s
        self.input_token_count = len(input_ids)
        if len(input_ids) > model.max_input_length:
            raise PromptTooLong(prompt_tokens=len(input_ids), max_input_tokens=model.max_input_length)
        room = model.max_sequence_length - len(input_ids)
        inputs: dict[str, Any] = {
            "input_ids": input_ids,
            "input_lengths": len(input_ids),
            "request_output_len": min(request.max_tokens, room),
            "end_id": model.end_ids[0],
            "pad_id": model.pad_id,
            "streaming": True,
            "exclude_input_in_output": True,
        }
        # What is at the contract's default stays out: each tensor costs Triton and the slot some time.
        chosen = {
            "min_length": min(request.min_tokens, room),
            "temperature": sampling.temperature or 1.0,
            "len_penalty": sampling.length_penalty,
            "presence_penalty": sampling.presence_penalty,
            "frequency_penalty": sampling.frequency_penalty,
            "repetition_penalty": sampling.repetition_penalty,
        }
        inputs |= {name: value for name, value in chosen.items() if value != _DEFAULTS[name]}
        if request.lora_name is not None:
            inputs["lora_name"] = request.lora_name
        if sampling.is_greedy:
            return inputs | {"runtime_top_k": _GREEDY}
        inputs["random_seed"] = sampling.seed
        if sampling.top_k > 0:
            inputs["runtime_top_k"] = min(sampling.top_k, _MAX_INT32)
        if sampling.top_p > 0:
            inputs["runtime_top_p"] = sampling.top_p
        return inputs

    def _take(self, events: list[Event]) -> str:
        """The text that a batch of events makes certain; notes the finish reason."""
        arrived_s = time.perf_counter()
        tokens: list[int] = []
        reason: str | None = None
        for event in events:
            tokens += event.tokens
            reason = event.finish_reason or reason
        if reason is not None:
            self.budget.slot_told(events[-1].arrival_time_ns, events[-1].last_token_time_ns, arrived_s)
        if tokens and self._first_token_s is None:
            self._first_token_s = arrived_s
        tokens, is_at_end = self._cut_at_end(tokens)
        if is_at_end:
            self.finish_reason = "end"
        elif reason is not None:
            self.finish_reason = "stop" if reason == "stop" else "length" if reason == "length" else "end"
        text = self._stop.push(self._detokenizer.push(tokens))
        self.budget.detokenize_s += time.perf_counter() - arrived_s
        if self._is_stopped():
            self.finish_reason = "stop"
        return text

    def _finish(self) -> str:
        """What was held back. A stop sequence can still be found in it."""
        if self._is_stopped():
            return ""
        rest = self._stop.push(self._detokenizer.finish())
        rest += self._stop.finish()
        if self._is_stopped():
            self.finish_reason = "stop"
        return rest

    def _is_stopped(self) -> bool:
        return self._stop.matched is not None

    def _cut_at_end(self, tokens: list[int]) -> tuple[list[int], bool]:
        """Tokens before the first that ends the text; such a token counts as output but has no text.

        NOTE: the engine stops at the first of the end ids by itself; a model may have several.
        """
        has_end = not self._end_ids.isdisjoint(tokens)
        for index, token in enumerate(tokens) if has_end else ():
            if token in self._end_ids and not self._is_early(index):
                self.output_token_count += index + 1
                return tokens[:index], True
        self.output_token_count += len(tokens)
        return tokens, False

    def _is_early(self, index: int) -> bool:
        return self.output_token_count + index < self._request.min_tokens
