"""Decoding of tokens to text, which is cut at the first stop sequence."""

from collections.abc import Sequence
from typing import NamedTuple

from runner.detokenizer.detokenizer import Detokenizer
from runner.engines.protocol.messages import TokenLogProb
from runner.generation.special_stops import SpecialStops
from runner.generation.stop_filter import StopFilter


class ReportedToken(NamedTuple):
    """An output token with its log probability."""

    token_id: int
    log_prob: TokenLogProb
    offset: int = 0
    """The number of characters of the text before it; of plain text only."""
    drops_space: bool = False
    """True if the text is without the space at the token's beginning."""


class TextDecoder:
    """A decoder of one text without parts: see ``PartsDecoder`` for others."""

    reasoning_token_count = 0

    def __init__(self, detokenizer: Detokenizer, stops: SpecialStops) -> None:
        self._detokenizer = detokenizer
        self._special = stops
        self._stop = StopFilter(stops.stops)
        self.may_stop = bool(stops.stops)
        self._num_decoded = 0
        self._num_shown = 0
        """Number of characters, of which the stop filter may hold some back."""
        self._pending: list[ReportedToken] = []
        """Tokens after those that are shown."""

    @property
    def stop_sequence(self) -> str | None:
        return self._special.named(self._stop.matched)

    @property
    def is_stopped(self) -> bool:
        return self._stop.matched is not None

    def push(self, tokens: list[int]) -> str:
        """Return the text that these further tokens make certain."""
        if not self._special.characters:
            return self._stop.push(self._detokenizer.push(tokens))
        return self._special.shown(self._stop.push(self._decode(tokens)))

    def push_with_log_probs(
        self, tokens: list[int], log_probs: Sequence[TokenLogProb], reported: list[ReportedToken]
    ) -> str:
        """Append the log probabilities of tokens to ``reported`` once the text before them is shown."""
        texts: list[str] = []
        for token, log_prob in zip(tokens, log_probs, strict=False):
            if self.is_stopped:
                break
            offset = self._num_decoded + self._detokenizer.num_held
            drops_space = self._detokenizer.drops_space
            self._pending.append(ReportedToken(token, log_prob, offset, drops_space))
            text = self._decode([token])
            self._num_decoded += len(self._special.shown(text))
            texts.append(self._show(self._stop.push(text)))
        self._report(reported, are_all=self.is_stopped)
        return "".join(texts)

    def finish(self, reported: list[ReportedToken]) -> str:
        """Return the rest, at the end of the text. A stop sequence can still be found in it."""
        if self.is_stopped:
            return ""
        rest = self._stop.push(self._detokenizer.finish())
        rest = self._show(rest + self._stop.finish())
        self._report(reported, are_all=True)
        return rest

    def _decode(self, tokens: list[int]) -> str:
        text = ""
        for run, character in self._special.runs(tokens):
            text += self._detokenizer.push(run)
            if character:
                text += self._detokenizer.finish() + character
        return text

    def _show(self, text: str) -> str:
        text = self._special.shown(text)
        self._num_shown += len(text)
        return text

    def _report(self, reported: list[ReportedToken], *, are_all: bool) -> None:
        """Report shown tokens. NOTE: a stop sequence can end the text before its own tokens."""
        shown = self._num_shown
        count = len(self._pending)
        if not are_all:
            count = next((at for at, each in enumerate(self._pending) if each.offset > shown), count)
        reported += [each._replace(offset=min(each.offset, shown)) for each in self._pending[:count]]
        del self._pending[:count]
