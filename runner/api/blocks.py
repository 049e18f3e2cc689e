"""The parts of an answer as blocks: a text, a reasoning or a call of a tool each."""

from collections.abc import Iterable, Iterator
from typing import Literal

import msgspec

from runner.api.generations import Piece
from runner.chat.families.parts import CallArguments, CallStart, Content, Part, Reasoning
from runner.observability.request_id import random_id

Kind = Literal["text", "reasoning", "call"]
_KINDS: dict[type[Part], Kind] = {Content: "text", Reasoning: "reasoning", CallArguments: "call"}


class Block(msgspec.Struct):
    index: int
    kind: Kind
    id: str
    name: str
    """Name of the tool."""
    call_id: str
    """Id that the model wrote, or a random one."""
    texts: list[str] = []

    @property
    def text(self) -> str:
        """Text so far. For a call: its arguments."""
        return "".join(self.texts)


Step = tuple[Literal["began", "grew", "ended"], Block, str]
"""Change of a block. The text is what was added, or empty."""


class Blocks:
    """All blocks of one answer. The last one is open until ``finish``."""

    def __init__(self) -> None:
        self.all: list[Block] = []

    def push(self, pieces: Iterable[Piece]) -> Iterator[Step]:
        for piece in pieces:
            for part in piece.parts or ([Content(piece.text)] if piece.text else []):
                if isinstance(part, CallStart):
                    yield from self.begin("call", part.name, part.id)
                elif part.text:
                    kind = _KINDS[type(part)]
                    if not self.all or self.all[-1].kind != kind:
                        yield from self.begin(kind)
                    self.all[-1].texts.append(part.text)
                    yield "grew", self.all[-1], part.text

    def begin(self, kind: Kind, name: str = "", call_id: str = "") -> Iterator[Step]:
        ended = self.all[-1:]
        own_id = random_id(24)
        self.all.append(Block(len(self.all), kind, own_id, name, call_id or f"call_{own_id}"))
        for block in ended:
            yield "ended", block, ""
        yield "began", self.all[-1], ""

    def finish(self) -> Iterator[Step]:
        if self.all:
            yield "ended", self.all[-1], ""

    @property
    def has_calls(self) -> bool:
        return any(each.kind == "call" for each in self.all)
