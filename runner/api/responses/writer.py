"""Answers of the Responses API: a response, or a stream of events with sequence numbers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from errors.coded_error import CodedError
from runner.api.blocks import Began, Block, Blocks, Ended, Grew, Step
from runner.api.error_response import describe
from runner.api.generations import Generations, Piece
from runner.api.responses.answers import (
    CallItem,
    ErrorEvent,
    Incomplete,
    InputDetails,
    Item,
    ItemEvent,
    MessageItem,
    OutputDetails,
    OutputText,
    PartEvent,
    ReasoningItem,
    ReasoningOptions,
    ReasoningText,
    Response,
    ResponseError,
    ResponseEvent,
    TextEvent,
    TextOptions,
    Usage,
)
from runner.api.responses.bodies import ResponsesBody
from runner.api.responses.order import fields_of, namespaces

Event = ResponseEvent | ItemEvent | PartEvent | TextEvent | ErrorEvent

_encode = msgspec.json.Encoder().encode
_IDS = {"text": "msg_", "reasoning": "rs_", "call": "fc_"}
_TEXTS = {
    "text": "response.output_text",
    "reasoning": "response.reasoning_text",
    "call": "response.function_call_arguments",
}
"""The first words of the events of a block's text."""


class ResponsesWriter:
    """An ``AnswerWriter``."""

    def __init__(self, body: ResponsesBody, model: str, *, is_large: bool) -> None:
        """``is_large``: nothing of the body that may be large is kept, to be repeated in the answer."""
        self.response_id = f"resp_{secrets.token_hex(12)}"
        self.model = model
        self.fields = fields_of(body)
        self._response = _opening(body, self.response_id, model, is_large=is_large)
        self._namespaces = namespaces(body)
        self._blocks = Blocks()
        self._num_events = 0
        self._is_cut = False

    def document(self, texts: Sequence[Sequence[Piece]], generations: Generations) -> bytes:
        for _ in self._push(texts[0]):
            pass
        self._finish(generations)
        return _encode(self._response)

    def events(self, batch: Sequence[Piece], generations: Generations) -> bytes:
        opening: list[Event] = []
        if not self._num_events:
            names = ("response.created", "response.in_progress")
            opening += [ResponseEvent(each, 0, self._response) for each in names]
        return self._written([*opening, *self._push(batch)])

    def last_events(self, generations: Generations) -> bytes:
        steps = [] if self._blocks.all else list(self._blocks.begin("text"))
        events = [event for step in (*steps, *self._blocks.finish()) for event in self._events(step)]
        self._finish(generations)
        return self._written([*events, ResponseEvent(f"response.{self._response.status}", 0, self._response)])

    def error_events(self, error: CodedError) -> bytes:
        facts = describe(error, self.fields)
        self._response.status, self._is_cut = "failed", True
        self._response.error = ResponseError(facts.code, facts.message)
        self._response.output = self._items()
        failed = ResponseEvent("response.failed", 0, self._response)
        return self._written([ErrorEvent(0, facts.code, facts.message, facts.param), failed])

    def _push(self, pieces: Sequence[Piece]) -> Iterator[Event]:
        self._is_cut = pieces[-1].finish_reason == "length"
        for step in self._blocks.push(pieces):
            yield from self._events(step)

    def _finish(self, generations: Generations) -> None:
        if not self._blocks.all:
            list(self._blocks.begin("text"))
        response = self._response
        response.status = "incomplete" if self._is_cut else "completed"
        response.incomplete_details = Incomplete("max_output_tokens") if self._is_cut else None
        response.output, response.usage = self._items(), _usage(generations)

    def _items(self) -> list[Item]:
        return [self._item(each, each.text, self._status(each)) for each in self._blocks.all]

    def _status(self, block: Block) -> str:
        """Of a block that has ended."""
        return "incomplete" if self._is_cut and block is self._blocks.all[-1] else "completed"

    def _events(self, step: Step) -> Iterator[Event]:
        block = step.block
        index, item_id, texts = block.index, _id(block), _TEXTS[block.kind]
        content_index = msgspec.UNSET if block.kind == "call" else 0
        log_probs: list[str] | msgspec.UnsetType = [] if block.kind == "text" else msgspec.UNSET
        match step:
            case Began():
                yield ItemEvent("response.output_item.added", 0, index, self._item(block, "", "in_progress"))
                if block.kind != "call":
                    yield PartEvent("response.content_part.added", 0, index, 0, item_id, _part(block, ""))
            case Grew(_, text):
                event = TextEvent(f"{texts}.delta", 0, index, item_id, content_index, logprobs=log_probs)
                event.delta = text
                yield event
            case Ended():
                event = TextEvent(f"{texts}.done", 0, index, item_id, content_index, logprobs=log_probs)
                whole = block.text
                if block.kind == "call":
                    event.arguments = whole
                    yield event
                else:
                    event.text = whole
                    yield event
                    yield PartEvent("response.content_part.done", 0, index, 0, item_id, _part(block, whole))
                done = self._item(block, whole, self._status(block))
                yield ItemEvent("response.output_item.done", 0, index, done)

    def _item(self, block: Block, text: str, status: str) -> Item:
        """``text``: so far; in an item that has just begun there is no content yet."""
        is_begun = status == "in_progress"
        match block.kind:
            case "text":
                return MessageItem(_id(block), status, [] if is_begun else [OutputText(text)])
            case "reasoning":
                return ReasoningItem(_id(block), status, [] if is_begun else [ReasoningText(text)])
            case "call":
                namespace, name = self._namespaces.get(block.name, (msgspec.UNSET, block.name))
                return CallItem(_id(block), status, block.call_id, name, text, namespace)

    def _written(self, events: Iterable[Event]) -> bytes:
        written = []
        for event in events:
            event.sequence_number = self._num_events
            self._num_events += 1
            written.append(b"event: %b\ndata: %b\n\n" % (event.type.encode(), _encode(event)))
        return b"".join(written)


def _opening(body: ResponsesBody, response_id: str, model: str, *, is_large: bool) -> Response:
    response = Response(
        id=response_id,
        created_at=int(time.time()),
        status="in_progress",
        model=model,
        output=[],
        max_output_tokens=body.max_output_tokens,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        temperature=body.temperature,
        top_p=body.top_p,
    )
    if is_large:
        return response
    response.instructions = body.instructions
    response.metadata = body.metadata or {}
    response.tools = body.tools or []
    response.tool_choice = body.tool_choice or "auto"
    if body.reasoning is not None:
        response.reasoning = ReasoningOptions(body.reasoning.effort)
    if body.text is not None and body.text.format is not None:
        response.text = TextOptions(body.text.format)
    return response


def _id(block: Block) -> str:
    return _IDS[block.kind] + block.id


def _part(block: Block, text: str) -> OutputText | ReasoningText:
    return OutputText(text) if block.kind == "text" else ReasoningText(text)


def _usage(generations: Generations) -> Usage:
    prompt_tokens, output_tokens = generations.prompt_tokens, generations.output_tokens
    return Usage(
        prompt_tokens,
        InputDetails(generations.cached_tokens or 0),
        output_tokens,
        OutputDetails(generations.reasoning_tokens or 0),
        prompt_tokens + output_tokens,
    )
