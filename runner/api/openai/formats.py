"""The two formats of an answer: completions and chat completions, whole or as events of a stream."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from tokenizers import Tokenizer

from runner.api.generations import Piece
from runner.api.openai.answers import (
    CalledFunction,
    ChatChoice,
    ChatChunkChoice,
    ChatLogProb,
    ChatLogProbs,
    Choice,
    CompletionChoice,
    CompletionLogProbs,
    Delta,
    FunctionDelta,
    Message,
    ToolCall,
    ToolCallDelta,
    TopLogProb,
)
from runner.chat.families.parts import CallArguments, CallStart, Content, Part, Reasoning
from runner.detokenizer.plan import bytes_of_token
from runner.detokenizer.stages import SPACE
from runner.generation.text_decoder import ReportedToken
from runner.observability.request_id import random_id

_FINISH_REASONS = {None: None, "end": "stop", "stop": "stop", "length": "length"}
"""Finish reasons by ours: OpenAI has one name for the end of a text and a stop sequence."""
_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenTexts:
    """Texts and bytes of single tokens, for log probabilities: a token may be part of a character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        state = tokenizer.decoder.__getstate__().decode() if tokenizer.decoder is not None else ""
        self._is_byte_level = '"ByteLevel"' in state
        self._has_byte_tokens = '"ByteFallback"' in state
        self._found: dict[int, tuple[str, list[int]]] = {}

    def find(self, token_id: int) -> tuple[str, list[int]]:
        """Return the token's text, with U+FFFD for bytes that are no whole character, and its bytes."""
        if token_id not in self._found:
            content = self._bytes(token_id)
            self._found[token_id] = (content.decode(errors="replace"), list(content))
        return self._found[token_id]

    def shown(self, token: ReportedToken, token_id: int | None = None) -> tuple[str, list[int]]:
        """Return what ``find`` does, as the text shows the token, or ``token_id`` in its place."""
        text, encoded = self.find(token.token_id if token_id is None else token_id)
        return (text[1:], encoded[1:]) if token.drops_space and text.startswith(" ") else (text, encoded)

    def _bytes(self, token_id: int) -> bytes:
        token: str = self._tokenizer.id_to_token(token_id) or ""
        if self._is_byte_level:
            return bytes_of_token(token).encode("latin-1")
        if self._has_byte_tokens and (byte := _BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(byte[1])
        return token.replace(SPACE, " ").encode()


class ChatFormat:
    """One object per request, like ``CompletionFormat``."""

    id_prefix = "chatcmpl-"
    whole_object = "chat.completion"
    event_object = "chat.completion.chunk"

    def __init__(self, tokens: TokenTexts, *, includes_reasoning: bool = True) -> None:
        self._tokens = tokens
        self._includes_reasoning = includes_reasoning
        self._num_calls: Counter[int] = Counter()
        """Number of calls so far, by index."""

    def opening(self, index: int) -> Choice | None:
        """Return the first event of a text, before any piece."""
        return ChatChunkChoice(index, Delta(role="assistant", content=""), None, None)

    def events(self, piece: Piece) -> list[Choice]:
        """Return a piece as events of a stream: one for each of its parts."""
        index = piece.index
        log_probs = self._log_probs([piece]) if piece.log_probs else None
        if not piece.parts:
            delta = Delta(content=piece.text) if piece.text else Delta()
            return [ChatChunkChoice(index, delta, log_probs, self._finish_reason(piece))]
        deltas = list(self._deltas(piece)) or [Delta()]
        events: list[Choice] = [ChatChunkChoice(index, each, None, None) for each in deltas]
        events[-1].logprobs, events[-1].finish_reason = log_probs, self._finish_reason(piece)
        return events

    def whole(self, pieces: Sequence[Piece]) -> Choice:
        """Return all pieces of one text as a choice of a whole answer."""
        index, log_probs = pieces[0].index, self._log_probs(pieces)
        parts = [part for piece in pieces for part in piece.parts]
        if not parts:
            message = Message("".join(piece.text for piece in pieces))
            return ChatChoice(index, message, log_probs, _finish_reason(pieces[-1]))
        message = Message("".join(part.text for part in parts if isinstance(part, Content)) or None)
        reasoning = "".join(part.text for part in parts if isinstance(part, Reasoning))
        if reasoning and self._includes_reasoning:
            message.reasoning_content = message.reasoning = reasoning
        if calls := _calls(parts):
            message.tool_calls = calls
        reason = _finish_reason(pieces[-1], has_calls=bool(calls))
        return ChatChoice(index, message, log_probs, reason)

    def _deltas(self, piece: Piece) -> Iterator[Delta]:
        for part in piece.parts:
            match part:
                case Content(text):
                    yield Delta(content=text)
                case Reasoning(text) if self._includes_reasoning:
                    yield Delta(reasoning_content=text, reasoning=text)
                case CallStart(name):
                    self._num_calls[piece.index] += 1
                    yield self._call(piece.index, FunctionDelta(name, ""), _call_id(part), "function")
                case CallArguments(text):
                    yield self._call(piece.index, FunctionDelta(None, text))

    def _call(
        self, index: int, function: FunctionDelta, call_id: str | None = None, kind: str | None = None
    ) -> Delta:
        return Delta(tool_calls=[ToolCallDelta(self._num_calls[index] - 1, function, call_id, kind)])

    def _finish_reason(self, piece: Piece) -> str | None:
        if piece.finish_reason is None:
            return None
        return _finish_reason(piece, has_calls=piece.index in self._num_calls)

    def _log_probs(self, pieces: Sequence[Piece]) -> ChatLogProbs | None:
        content = [self._log_prob(each) for piece in pieces for each in piece.log_probs]
        return ChatLogProbs(content) if content else None

    def _log_prob(self, token: ReportedToken) -> ChatLogProb:
        text, encoded = self._tokens.shown(token)
        top = [self._top(token, *each) for each in token.log_prob.top]
        return ChatLogProb(text, token.log_prob.value, encoded, top)

    def _top(self, token: ReportedToken, token_id: int, value: float) -> TopLogProb:
        text, encoded = self._tokens.shown(token, token_id)
        return TopLogProb(text, value, encoded)


class CompletionFormat:
    id_prefix = "cmpl-"
    whole_object = event_object = "text_completion"

    def __init__(self, tokens: TokenTexts) -> None:
        self._tokens = tokens

    def opening(self, index: int) -> Choice | None:
        return None

    def events(self, piece: Piece) -> list[Choice]:
        return [self._choice(piece, piece.text, piece.log_probs)]

    def whole(self, pieces: Sequence[Piece]) -> Choice:
        tokens = [each for piece in pieces for each in piece.log_probs]
        return self._choice(pieces[-1], "".join([piece.text for piece in pieces]), tokens)

    def _choice(self, last: Piece, text: str, tokens: list[ReportedToken]) -> Choice:
        log_probs = self._log_probs(tokens) if tokens else None
        return CompletionChoice(last.index, text, log_probs, _finish_reason(last))

    def _log_probs(self, tokens: list[ReportedToken]) -> CompletionLogProbs:
        return CompletionLogProbs(
            text_offset=[each.offset for each in tokens],
            token_logprobs=[each.log_prob.value for each in tokens],
            tokens=[self._tokens.shown(each)[0] for each in tokens],
            top_logprobs=[self._top(each) for each in tokens] if tokens[0].log_prob.top else None,
        )

    def _top(self, token: ReportedToken) -> dict[str, float]:
        """Return log probabilities by text. As in OpenAI's answers, the chosen token is always among them."""
        log_prob = token.log_prob
        values = {self._tokens.shown(token, each)[0]: value for each, value in reversed(log_prob.top)}
        values.setdefault(self._tokens.shown(token)[0], log_prob.value)
        return values


Format = ChatFormat | CompletionFormat


def _call_id(start: CallStart) -> str:
    return start.id or f"call_{random_id(24)}"


def _calls(parts: Iterable[Part]) -> list[ToolCall]:
    calls: list[ToolCall] = []
    arguments: list[list[str]] = []
    for part in parts:
        match part:
            case CallStart(name):
                calls.append(ToolCall(_call_id(part), CalledFunction(name, "")))
                arguments.append([])
            case CallArguments(text):
                arguments[-1].append(text)
    for call, pieces in zip(calls, arguments, strict=True):
        call.function.arguments = "".join(pieces)
    return calls


def _finish_reason(piece: Piece, *, has_calls: bool = False) -> str | None:
    reason = _FINISH_REASONS[piece.finish_reason]
    return "tool_calls" if has_calls and reason == "stop" else reason
