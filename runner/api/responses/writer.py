"""Answers of the Responses API: a response, or a stream of events with sequence numbers."""

import time
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from errors.coded_error import CodedError
from runner.api.blocks import Block, Blocks, Step
from runner.api.error_response import describe
from runner.api.generation_response import COMMENT
from runner.api.generations import Generations, Piece
from runner.api.openai.answers import OutputTokens
from runner.api.responses import answers
from runner.api.responses.bodies import ResponsesBody
from runner.api.responses.to_chat import fields_of, namespaces
from runner.observability.request_id import random_id

_encode = msgspec.json.Encoder().encode
_IDS = {"text": "msg_", "reasoning": "rs_", "call": "fc_"}
_TEXTS = {
    "text": (b"response.output_text", b'"content_index":0,', b',"logprobs":[]'),
    "reasoning": (b"response.reasoning_text", b'"content_index":0,', b""),
    "call": (b"response.function_call_arguments", b"", b""),
}
"""Events of a block's text: first words of their type, fields before and after the text."""
_TEXT_EVENT = b"""event: %b.%b
data: {"type":"%b.%b","sequence_number":%d,"output_index":%d,"item_id":"%b",%b"%b":%b%b}

"""


class ResponsesWriter:
    """An ``AnswerWriter``."""

    idle_event = COMMENT

    def __init__(self, body: ResponsesBody, model: str, *, is_large: bool) -> None:
        """Initialize. ``is_large``: large parts of the body are not kept, to be repeated in the answer."""
        self.response_id = f"resp_{random_id(24)}"
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
        opening = b""
        if not self._num_events:
            for name in ("response.created", "response.in_progress"):
                opening += self._event(name, response=self._response)
        return opening + self._written(self._push(batch))

    def last_events(self, generations: Generations) -> bytes:
        steps = [] if self._blocks.all else list(self._blocks.begin("text"))
        events = self._written((*steps, *self._blocks.finish()))
        self._finish(generations)
        return events + self._event(f"response.{self._response.status}", response=self._response)

    def error_events(self, error: CodedError) -> bytes:
        facts = describe(error, self.fields)
        self._response.status, self._is_cut = "failed", True
        self._response.error = answers.ResponseError(facts.code, facts.message)
        self._response.output = self._items()
        told = self._event("error", code=facts.code, message=facts.message, param=facts.param)
        return told + self._event("response.failed", response=self._response)

    def _push(self, pieces: Sequence[Piece]) -> Iterator[Step]:
        self._is_cut = pieces[-1].finish_reason == "length"
        return self._blocks.push(pieces)

    def _finish(self, generations: Generations) -> None:
        if not self._blocks.all:
            list(self._blocks.begin("text"))
        response = self._response
        response.status = "incomplete" if self._is_cut else "completed"
        response.incomplete_details = answers.Incomplete("max_output_tokens") if self._is_cut else None
        response.output, response.usage = self._items(), _usage(generations)

    def _items(self) -> list[answers.Item]:
        return [self._item(each, each.text, self._status(each)) for each in self._blocks.all]

    def _status(self, block: Block) -> str:
        return "incomplete" if self._is_cut and block is self._blocks.all[-1] else "completed"

    def _written(self, steps: Iterable[Step]) -> bytes:
        return b"".join([event for step in steps for event in self._events(*step)])

    def _events(self, what: str, block: Block, text: str) -> Iterator[bytes]:
        index, is_call = block.index, block.kind == "call"
        match what:
            case "began":
                item = self._item(block, "", "in_progress")
                yield self._event("response.output_item.added", output_index=index, item=item)
                if not is_call:
                    yield self._part_event("added", block, "")
            case "grew":
                yield self._text_event(b"delta", b"delta", block, text)
            case "ended":
                whole = block.text
                yield self._text_event(b"done", b"arguments" if is_call else b"text", block, whole)
                if not is_call:
                    yield self._part_event("done", block, whole)
                item = self._item(block, whole, self._status(block))
                yield self._event("response.output_item.done", output_index=index, item=item)

    def _part_event(self, verb: str, block: Block, text: str) -> bytes:
        part = answers.OutputText(text) if block.kind == "text" else answers.ReasoningText(text)
        place = {"output_index": block.index, "content_index": 0, "item_id": _id(block)}
        return self._event(f"response.content_part.{verb}", **place, part=part)

    def _text_event(self, verb: bytes, field: bytes, block: Block, text: str) -> bytes:
        """Write an event of a piece of text. NOTE: a hot path."""
        name, before, after = _TEXTS[block.kind]
        number, item_id = self._num_events, _id(block).encode()
        self._num_events += 1
        place = number, block.index, item_id
        return _TEXT_EVENT % (name, verb, name, verb, *place, before, field, _encode(text), after)

    def _event(self, name: str, **fields: object) -> bytes:
        data = _encode({"type": name, "sequence_number": self._num_events, **fields})
        self._num_events += 1
        return b"event: %b\ndata: %b\n\n" % (name.encode(), data)

    def _item(self, block: Block, text: str, status: str) -> answers.Item:
        """Return the item with ``text`` so far; if it has just begun, it has no content yet."""
        is_begun = status == "in_progress"
        match block.kind:
            case "text":
                return answers.MessageItem(_id(block), status, [] if is_begun else [answers.OutputText(text)])
            case "reasoning":
                return answers.ReasoningItem(
                    _id(block), status, [] if is_begun else [answers.ReasoningText(text)]
                )
            case "call":
                namespace, name = self._namespaces.get(block.name, (msgspec.UNSET, block.name))
                return answers.CallItem(_id(block), status, block.call_id, name, text, namespace)


def _opening(body: ResponsesBody, response_id: str, model: str, *, is_large: bool) -> answers.Response:
    response = answers.Response(
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
        response.reasoning = answers.ReasoningOptions(body.reasoning.effort)
    if body.text is not None and body.text.format is not None:
        response.text = answers.TextOptions(body.text.format)
    return response


def _id(block: Block) -> str:
    return _IDS[block.kind] + block.id


def _usage(generations: Generations) -> answers.Usage:
    prompt_tokens, output_tokens = generations.prompt_tokens, generations.output_tokens
    return answers.Usage(
        prompt_tokens,
        answers.InputDetails(generations.cached_tokens or 0),
        output_tokens,
        OutputTokens(generations.reasoning_tokens or 0),
        prompt_tokens + output_tokens,
    )
