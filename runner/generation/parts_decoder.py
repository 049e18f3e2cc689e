"""Decoding of tokens to the parts of an answer: content, reasoning and calls of tools."""

from collections.abc import Iterator

from tokenizers import Tokenizer

from runner.chat.families.family import AnswerForm
from runner.chat.families.marked_answer import answer_reader
from runner.chat.families.parts import CallStart, Content, Part
from runner.detokenizer.detokenizer import Detokenizer
from runner.engines.protocol.messages import TokenLogProb
from runner.generation.special_stops import SpecialStops
from runner.generation.stop_filter import StopFilter
from runner.generation.text_decoder import ReportedToken


class PartsDecoder:
    """A decoder of one answer. Stop sequences in its content end it, not those in reasoning or arguments."""

    def __init__(
        self, form: AnswerForm, tokenizer: Tokenizer, detokenizer: Detokenizer, stops: SpecialStops
    ) -> None:
        self._reader = answer_reader(form, tokenizer)
        self._characters = stops.characters | self._reader.markers.characters
        self._has_no_marker = frozenset(self._characters).isdisjoint
        self._detokenizer = detokenizer
        self._special = stops
        self._stop = StopFilter(stops.stops)
        self._pending: list[ReportedToken] = []
        """Tokens that may be content."""
        self._section = 0
        self._has_one_call = form.tools is not None and not form.tools.is_parallel
        self._num_calls = 0
        self.may_stop = bool(stops.stops) or self._has_one_call
        """True if the answer may end before the engine's end, other than by an end token."""
        self.reasoning_token_count = 0

    @property
    def stop_sequence(self) -> str | None:
        return self._special.named(self._stop.matched)

    @property
    def is_stopped(self) -> bool:
        """True at a stop sequence, or at a second call where one is allowed."""
        return self.stop_sequence is not None or (self._has_one_call and self._num_calls > 1)

    def push(self, tokens: list[int]) -> list[Part]:
        """Return the parts that these further tokens make certain."""
        if not self._has_no_marker(tokens):
            return [part for run in self._runs(tokens) for part in self._push_run(run)]
        reader = self._reader
        if len(tokens) > 1 and reader.needs_single_tokens:
            return [part for token in tokens for part in self.push([token])]
        text = self._detokenizer.push(tokens)
        was_reasoning = reader.is_reasoning
        parts = reader.push(text) if text else []
        if was_reasoning and reader.is_reasoning:
            self.reasoning_token_count += len(tokens)
        return self._cut(parts) if self.may_stop else parts

    def push_with_log_probs(
        self, tokens: list[int], log_probs: list[TokenLogProb], reported: list[ReportedToken]
    ) -> list[Part]:
        """Return parts, and append the log probabilities of the tokens of content to ``reported``."""
        parts: list[Part] = []
        for token, log_prob in zip(tokens, log_probs, strict=False):
            if self.is_stopped:
                break
            drops_space = self._detokenizer.drops_space
            new = self.push([token])
            has_content = any(isinstance(part, Content) for part in new)
            is_same = self._reader.num_sections == self._section
            if not is_same:
                self._section = self._reader.num_sections
                self._pending.clear()
            if has_content or (is_same and token not in self._characters):
                self._pending.append(ReportedToken(token, log_prob, drops_space=drops_space))
            if has_content:
                self._report(reported)
            parts += new
        return parts

    def finish(self, reported: list[ReportedToken]) -> list[Part]:
        """Return the rest, at the end of the answer. A stop sequence can still be found in it."""
        if self.is_stopped:
            return []
        rest = self._detokenizer.finish()
        parts = self._reader.push(rest) if rest else []
        parts = self._cut([*parts, *self._reader.finish()])
        if not self.is_stopped:
            parts += self._end_content()
        if any(isinstance(part, Content) for part in parts):
            self._report(reported)
        return parts

    def _report(self, reported: list[ReportedToken]) -> None:
        reported += self._pending
        self._pending.clear()

    def _runs(self, tokens: list[int]) -> Iterator[list[int]]:
        """Yield each marker alone, and the tokens between markers."""
        run: list[int] = []
        for token in tokens:
            if token in self._characters:
                yield run
                yield [token]
                run = []
            else:
                run.append(token)
        yield run

    def _push_run(self, tokens: list[int]) -> list[Part]:
        """Return the parts of one marker, or of tokens without markers."""
        if len(tokens) != 1 or tokens[0] not in self._characters:
            return self.push(tokens)
        character = self._characters[tokens[0]]
        if self._reader.is_reasoning and tokens[0] in self._special.characters:
            character = self._special.shown(character)
        return self._cut(self._reader.push(self._detokenizer.finish() + character))

    def _cut(self, parts: list[Part]) -> list[Part]:
        """Return the parts before the first stop, without what may be part of a stop sequence."""
        shown: list[Part] = []
        for part in () if self.is_stopped else parts:
            if isinstance(part, Content):
                if text := self._special.shown(self._stop.push(part.text)):
                    shown.append(Content(text))
            else:
                shown += self._end_content()
                self._num_calls += isinstance(part, CallStart)
                if not self.is_stopped:
                    shown.append(part)
            if self.is_stopped:
                break
        return shown

    def _end_content(self) -> list[Part]:
        """Return the content that was held back, before another part or the end."""
        rest = self._special.shown(self._stop.finish())
        if not self.is_stopped:
            self._stop = StopFilter(self._special.stops)
        return [Content(rest)] if rest else []
