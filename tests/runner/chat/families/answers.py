"""Answers of models, written token by token, and how they are read in one or many steps."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from tokenizers import AddedToken, Tokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel

from runner.chat.families.family import AnswerForm, Family
from runner.chat.families.parts import CallArguments, CallStart, Content, Part, Reasoning
from runner.chat.families.tools import Tool, ToolUse
from runner.detokenizer.detokenizer import Detokenizer
from runner.generation.parts_decoder import PartsDecoder
from runner.generation.special_stops import SpecialStops
from runner.generation.stop_sequences import StopSequences

_MERGES = (
    *("t o", "o l", "to ol", '" :', '{ "', "< /", "a r", "Ċ Ċ"),
    *("} }", '" ,', "n a", "m e", "na me", "> Ċ", "Ġ {"),
)


@lru_cache(maxsize=64)
def tokenizer_with(special: tuple[str, ...] = (), added: tuple[str, ...] = ()) -> Tokenizer:
    """Bytes and a few merges, with these added tokens."""
    alphabet = sorted(ByteLevel.alphabet())
    pairs = [tuple(merge.split()) for merge in _MERGES]
    words = [*alphabet, *dict.fromkeys(one + other for one, other in pairs)]
    tokenizer = Tokenizer(BPE({word: id_ for id_, word in enumerate(words)}, pairs))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(text, special=True) for text in special])
    tokenizer.add_tokens([AddedToken(text, special=False) for text in added])
    return tokenizer


@dataclass(frozen=True)
class Call:
    name: str
    arguments: str
    id: str = ""


@dataclass
class Message:
    content: str = ""
    reasoning: str = ""
    calls: list[Call] = field(default_factory=list)


class Writer:
    """A writer of an answer in tokens. ``marker`` uses the tokenizer's own token if there is one."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.ids: list[int] = []
        self._plain = tokenizer_with()

    def text(self, text: str) -> Writer:
        self.ids += self._plain.encode(text, add_special_tokens=False).ids
        return self

    def marker(self, marker: str) -> Writer:
        id_ = self.tokenizer.token_to_id(marker)
        if id_ is None:
            return self.text(marker)
        self.ids.append(id_)
        return self


def decoder(
    family: Family,
    tokenizer: Tokenizer,
    *,
    starts_in_reasoning: bool = False,
    tools: ToolUse | None,
    stops: Sequence[str] = (),
) -> PartsDecoder:
    form = AnswerForm(family, tools, starts_in_reasoning)
    return PartsDecoder(
        form, tokenizer, Detokenizer(tokenizer), SpecialStops(StopSequences(stops), tokenizer)
    )


def read(made: PartsDecoder, chunks: Iterable[list[int]]) -> list[Part]:
    parts: list[Part] = []
    for chunk in chunks:
        parts += made.push(chunk)
        if made.is_stopped:
            break
    return parts + made.finish([])


def message_of(parts: Iterable[Part]) -> Message:
    message = Message()
    for part in parts:
        match part:
            case Content(text):
                assert text
                message.content += text
            case Reasoning(text):
                assert text
                message.reasoning += text
            case CallStart(name, id_):
                message.calls.append(Call(name, "", id_))
            case CallArguments(text):
                assert text
                last = message.calls[-1]
                message.calls[-1] = Call(last.name, last.arguments + text, last.id)
    return message


def read_in_all_ways(
    make: Callable[[], PartsDecoder], ids: list[int], rng: random.Random | None = None
) -> Message:
    """Read tokens one by one, at once and, with ``rng``, in random steps: the message is the same."""
    ways = [[[each] for each in ids], [ids], *(random_chunks(ids, rng) for _ in range(2) if rng)]
    messages = []
    for chunks in ways:
        made = make()
        messages.append((message_of(read(made, chunks)), made.is_stopped or made.reasoning_token_count))
    assert all(each == messages[0] for each in messages)
    return messages[0][0]


def random_chunks(ids: list[int], rng: random.Random) -> list[list[int]]:
    chunks = []
    at = 0
    most = rng.choice((2, 5, 30))
    while at < len(ids):
        size = rng.randint(0, most)
        chunks.append(ids[at : at + size])
        at += size
    return chunks


def tool_use(**schemas: dict[str, object]) -> ToolUse:
    return ToolUse(
        tuple(Tool(name, parameters={"type": "object", "properties": each}) for name, each in schemas.items())
    )
