"""The generation core: from a validated request to a stream of text, with its counts and times.

tokens (engine server) -> cut at the end token -> Detokenizer -> StopFilter -> text (``TextDecoder``). With an
answer form the tokens become parts in place of text (``PartsDecoder``). Leaving the stream early cancels the
request, which frees the engine's sequence.
"""

import time
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import partial
from typing import Any, Protocol

import msgspec

from errors.coded_error import CodedError
from errors.triton import TritonUnavailable
from runner.chat.families.parts import Part
from runner.detokenizer.detokenizer import Detokenizer, context_of
from runner.engines.protocol.messages import FinishReason, Output, Submit, TokenLogProb
from runner.engines.protocol.outlet import Outlet, Outputs
from runner.generation.inputs import submit_message
from runner.generation.model import ModelFacts
from runner.generation.parts_decoder import PartsDecoder
from runner.generation.request import GenerationRequest
from runner.generation.special_stops import SpecialStops
from runner.generation.stop_sequences import StopSequences
from runner.generation.text_decoder import ReportedToken, TextDecoder
from runner.generation.timing import TimeBudget
from runner.observability.logs import GenerationSummary, log_generation
from runner.observability.meter import Meter, RequestMeter
from runner.observability.tracing import RequestTrace

_unused_meter = Meter("none")


class TokenSource(Protocol):
    """A client of the engine server, or of Triton."""

    def generate(self, submit: Submit, outlet: Outlet[Output] | None = None) -> Outputs:
        """Yield outputs that have arrived, until the finish reason. A source may ignore the ``outlet``.

        Raises a CodedError, as does the iteration.
        """


class Generation:
    """One request. Iterate ``text()`` once, or ``parts()`` if the request has an answer form; afterwards the
    attributes have the result.
    """

    def __init__(
        self,
        request: GenerationRequest,
        model: ModelFacts,
        client: TokenSource,
        *,
        is_whole: bool = False,
        measures_phases: bool = False,
        meter: RequestMeter | None = None,
        trace: RequestTrace | None = None,
        logged_api: str = "",
        request_id: str = "",
    ) -> None:
        """Initialize. ``is_whole``: the text is read as a whole. ``measures_phases``: ask for engine times.
        ``request_id``: for logs. ``logged_api``: log a line at the end, with this API.
        """
        self._unsent: GenerationRequest | None = request
        """The request until it is sent; not kept, as its prompt may be large."""
        self._min_tokens = request.min_tokens
        self._has_log_probs = request.num_top_log_probs is not None
        self.budget = TimeBudget()
        self.request_id = request_id
        self._trace = trace
        self._logged_api = logged_api
        self._inputs = request.traced() if logged_api else {}
        self._error = ""
        self._meter = meter or RequestMeter(_unused_meter)
        self._measures_phases = measures_phases
        self._model = model
        self._client = client
        self._end_ids = frozenset(() if request.ignores_end else model.end_ids)
        stops = StopSequences(request.stop_sequences)
        special = SpecialStops(stops, model.tokenizer, skips_special_tokens=request.skips_special_tokens)
        self._stop_tokens = special.by_token
        self._stop_ids = frozenset(request.stop_token_ids)
        self._all_ends = self._end_ids.union(self._stop_ids, self._stop_tokens)
        self._stopped_by: str | None = None
        """The stop sequence that is a token, if it ended the text."""
        self._detokenizer = Detokenizer(model.tokenizer, skip_special_tokens=request.skips_special_tokens)
        self._decoder: TextDecoder | PartsDecoder
        if request.answer is None:
            self._decoder = TextDecoder(self._detokenizer, special)
        else:
            self._decoder = PartsDecoder(request.answer, model.tokenizer, self._detokenizer, special)
        # NOTE: not where the text may end here, because the engine goes on until the tokens have arrived.
        self._collects = is_whole and not self._decoder.may_stop
        self._started_s = time.perf_counter()
        self._first_token_s: float | None = None
        self._ended_s: float | None = None
        self.input_token_count = 0
        self.output_token_count = 0
        self.cached_token_count: int | None = None
        """Number of input tokens that the engine did not compute; None: it does not know."""
        self.drafted: tuple[int, int] | None = None
        """Numbers of draft tokens that were accepted and rejected; None: not known."""
        self.finish_reason: FinishReason | None = None
        self.embedding: bytes | None = None
        """Result of a request that embeds: see ``Finished``."""
        self._log_probs: list[ReportedToken] = []

    @property
    def duration_s(self) -> float:
        """Time from the request to its last token, or until now."""
        return (self._ended_s or time.perf_counter()) - self._started_s

    @property
    def stop_sequence(self) -> str | None:
        """Stop sequence that ended the text."""
        return self._stopped_by or self._decoder.stop_sequence

    @property
    def time_to_first_token_s(self) -> float | None:
        return None if self._first_token_s is None else self._first_token_s - self._started_s

    @property
    def tokens_per_second(self) -> float:
        return self.output_token_count / self.duration_s

    @property
    def is_over(self) -> bool:
        return self.finish_reason is not None

    @property
    def has_parts(self) -> bool:
        return isinstance(self._decoder, PartsDecoder)

    @property
    def reasoning_token_count(self) -> int:
        """Number of output tokens that are reasoning; 0 without an answer form."""
        return self._decoder.reasoning_token_count

    def text(self, outlet: Outlet[str] | None = None) -> AsyncGenerator[str, None]:
        """Yield text as it becomes certain. Raises a CodedError, also after the first text."""
        return self._chunks(outlet)

    def parts(self, outlet: Outlet[list[Part]] | None = None) -> AsyncGenerator[list[Part], None]:
        """Yield parts as they become certain. Raises a CodedError, also after the first parts."""
        return self._chunks(outlet)

    async def _chunks(self, outlet: Outlet[Any] | None) -> AsyncGenerator[Any, None]:
        of_outputs = None if outlet is None else Outlet(outlet.is_ready, partial(self._put, outlet.put))
        self._meter.began()
        try:
            source = self._client.generate(await self._submit_message(), of_outputs)
            async with aclosing(source) as outputs:
                async for output in outputs:
                    if not self.is_over and (chunk := self._take(output)):
                        yield chunk
                    if self.is_over:
                        break
            if not self.is_over:
                raise TritonUnavailable(reason="its stream ended before the last token")
            self._ended_s = time.perf_counter()
            if rest := self._finish():
                yield rest
        except Exception as exc:
            self.fail(exc)
            raise
        finally:
            self._end()

    def _put(self, put: Callable[[Any], bool], output: Output) -> bool:
        """Take an output for an outlet. Return False if the reader wants to end."""
        if chunk := self._take(output):
            put(chunk)
        return not self.is_over

    def fail(self, error: Exception) -> None:
        """Note an error for logs, metrics and traces. The caller must end the iteration."""
        self._error = error.code if isinstance(error, CodedError) else type(error).__name__

    def _end(self) -> None:
        self._meter.ended(
            is_finished=self.is_over,
            error=self._error,
            input_tokens=self.input_token_count,
            cached_tokens=self.cached_token_count or 0,
            output_tokens=self.output_token_count,
            detokenize_s=self.budget.detokenize_s,
        )
        if self._trace is None and not self._logged_api:
            return
        summary = GenerationSummary(
            request_id=self.request_id,
            trace_id="" if self._trace is None else self._trace.trace_id,
            finish_reason=self.finish_reason,
            error=self._error,
            input_token_count=self.input_token_count,
            cached_token_count=self.cached_token_count,
            output_token_count=self.output_token_count,
            duration_s=self.duration_s,
            time_to_first_token_s=self.time_to_first_token_s,
            detokenize_s=self.budget.detokenize_s,
            phases=tuple(self.budget.edges()),
            inputs=self._inputs,
        )
        if self._trace is not None:
            self._trace.ended(summary)
        if self._logged_api:
            log_generation(self._logged_api, summary)

    async def _submit_message(self) -> Submit:
        """Make the message. Raises E1002 for too long a prompt, E1005 if all prompts of the call are."""
        request, self._unsent = self._unsent, None
        assert request is not None
        start_s = time.perf_counter()
        input_ids = await request.prompt_ids.get(self._model.tokenizing)
        self.budget.tokenize_s = time.perf_counter() - start_s
        message = submit_message(request, self._model, input_ids)
        self.input_token_count = len(input_ids)
        self._continue(request, input_ids)
        request.prompt_tokens.add(len(input_ids))
        self._meter.sent(self.budget.tokenize_s)
        return msgspec.structs.replace(
            message,
            collects_until=list(self._all_ends) if self._collects else None,
            sent_s=self.budget.sent(),
            returns_times=self._measures_phases,
            traceparent=self._trace.traceparent() if self._trace else "",
            caller_id=self.request_id,
        )

    def _continue(self, request: GenerationRequest, input_ids: list[int]) -> None:
        """Continue the prompt's text with the output."""
        if request.begins_turn or request.embeds:
            return
        skips = request.skips_special_tokens
        context = context_of(self._model.tokenizer, input_ids, skip_special_tokens=skips)
        self._detokenizer.follow(context, shows_incomplete=request.is_echoed)

    def _take(self, output: Output) -> str | list[Part]:
        """Return the text or the parts that an output makes certain, and set the finish reason."""
        arrived_s = time.perf_counter()
        tokens, reason = output.tokens, output.finish_reason
        if output.cached_tokens is not None:
            self.cached_token_count = output.cached_tokens
        self.input_token_count = output.prompt_tokens or self.input_token_count
        if reason is not None:
            self.embedding, self.drafted = output.embedding, output.drafted
            self.budget.received_last(output.times_s, arrived_s)
        if tokens:
            self._meter.received(len(tokens), arrived_s)
            if self._first_token_s is None:
                self._first_token_s = arrived_s
        if reason is not None:
            self.finish_reason = reason if reason in ("stop", "length") else "end"
        num_before = self.output_token_count
        chunk: str | list[Part]
        chunk, num_decoded = self._decode(self._cut_at_end(tokens), output.log_probs)
        self.budget.detokenize_s += time.perf_counter() - arrived_s
        if self._decoder.is_stopped:
            self.finish_reason = "stop"
            self.output_token_count = num_before + num_decoded
        return chunk

    def _decode(self, tokens: list[int], log_probs: list[TokenLogProb]) -> tuple[Any, int]:
        """Return the text or the parts of tokens, and the number of tokens up to a stop.

        Tokens are decoded together unless the text may stop: then none after the stop counts.
        """
        step = 1 if self._decoder.may_stop else len(tokens)
        chunk = self._push(tokens[:step], log_probs[:step])
        at = step
        while at < len(tokens) and not self._decoder.is_stopped:
            chunk += self._push(tokens[at : at + step], log_probs[at : at + step])
            at += step
        return chunk, min(at, len(tokens))

    def _push(self, tokens: list[int], log_probs: list[TokenLogProb]) -> Any:
        if self._has_log_probs:
            return self._decoder.push_with_log_probs(tokens, log_probs, self._log_probs)
        return self._decoder.push(tokens)

    def take_log_probs(self) -> list[ReportedToken]:
        """Take the log probabilities since the last call. The text before each of their tokens is shown."""
        taken, self._log_probs = self._log_probs, []
        return taken

    def _finish(self) -> str | list[Part]:
        """Return the rest that was held back. A stop sequence can still be found in it."""
        rest: str | list[Part] = self._decoder.finish(self._log_probs)
        if self._decoder.is_stopped:
            self.finish_reason = "stop"
        return rest

    def _cut_at_end(self, tokens: list[int]) -> list[int]:
        """Return the tokens before the first that ends the text, which counts as output but has no text.

        NOTE: an engine may go on after it; NVIDIA's C++ backend stops only at the first of the end ids.
        """
        has_end = not self._all_ends.isdisjoint(tokens)
        for index, token in enumerate(tokens) if has_end else ():
            if reason := self._reason_to_end(token, self.output_token_count + index):
                self.finish_reason = reason
                self.output_token_count += index + 1
                return tokens[:index]
        self.output_token_count += len(tokens)
        return tokens

    def _reason_to_end(self, token: int, num_before: int) -> FinishReason | None:
        is_early = num_before < self._min_tokens
        if token in self._end_ids and not is_early:
            return "end"
        self._stopped_by = self._stop_tokens.get(token)
        return "stop" if self._stopped_by or (token in self._stop_ids and not is_early) else None
