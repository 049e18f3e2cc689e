"""Chat completions, Responses and Messages tell the same text, reasoning and calls, whole and streamed."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from errors.api import RequestTimedOut
from runner.api.error_response import Fields
from runner.api.generation_response import AnswerWriter
from runner.api.generations import Generations, Piece
from runner.api.messages.writer import MessagesWriter
from runner.api.openai.bodies import ChatBody
from runner.api.openai.choices_writer import ChoicesWriter
from runner.api.openai.formats import ChatFormat, TokenTexts
from runner.api.responses.bodies import ResponsesBody
from runner.api.responses.writer import ResponsesWriter
from runner.chat.families.parts import CallArguments, CallStart, Content, Part, Reasoning
from tests.runner.api.apis import data_of
from tests.runner.api.writing_model import CALLS, TOKENIZER, WritingModel

GENERATIONS = cast(
    Generations,
    SimpleNamespace(prompt_tokens=3, output_tokens=9, cached_tokens=1, reasoning_tokens=2, drafted=None),
)


@dataclass
class Told:
    text: str = ""
    reasoning: str = ""
    calls: list[tuple[str, str]] = field(default_factory=list)
    """Names and arguments."""

    def add(self, arguments: str) -> None:
        name, before = self.calls.pop()
        self.calls.append((name, before + arguments))


def events_of(data: bytes) -> list[dict[str, Any]]:
    return [json.loads(each) for each in data_of(data.decode()) if each.startswith("{")]


def chat_told(message: dict[str, Any]) -> Told:
    calls = [
        (call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls", ())
    ]
    return Told(message["content"] or "", message.get("reasoning", ""), calls)


def chat_events_told(events: Iterable[dict[str, Any]]) -> Told:
    """Read the deltas, each of which has one kind of part; the first has the role, the last the reason."""
    told = Told()
    choices = [event["choices"][0] for event in events]
    assert [choice["delta"].get("role") for choice in choices] == ["assistant"] + [None] * (len(choices) - 1)
    assert [choice["finish_reason"] is None for choice in choices] == [True] * (len(choices) - 1) + [False]
    for choice in choices[1:]:
        delta = choice["delta"]
        assert len(delta.keys() - {"reasoning"}) <= 1
        assert delta.get("reasoning") == delta.get("reasoning_content")
        told.text += delta.get("content", "")
        told.reasoning += delta.get("reasoning", "")
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                assert (call["index"], call["type"], call["function"]["arguments"]) == (
                    *(len(told.calls), "function"),
                    "",
                )
                told.calls.append((call["function"]["name"], ""))
            else:
                assert (call.keys(), call["index"]) == ({"index", "function"}, len(told.calls) - 1)
                told.add(call["function"]["arguments"])
    return told


def response_told(response: dict[str, Any]) -> Told:
    told = Told()
    for item in response["output"]:
        match item["type"]:
            case "message":
                told.text += "".join(part["text"] for part in item["content"])
            case "reasoning":
                told.reasoning += "".join(part["text"] for part in item["content"])
            case "function_call":
                told.calls.append((item["name"], item["arguments"]))
    return told


def response_events_told(events: Iterable[dict[str, Any]]) -> Told:
    """Read the deltas, which agree with the last event."""
    told = Told()
    for event in events:
        match event["type"]:
            case "response.output_text.delta":
                told.text += event["delta"]
            case "response.reasoning_text.delta":
                told.reasoning += event["delta"]
            case "response.output_item.added" if event["item"]["type"] == "function_call":
                told.calls.append((event["item"]["name"], ""))
            case "response.function_call_arguments.delta":
                told.add(event["delta"])
            case "response.completed" | "response.incomplete":
                assert response_told(event["response"]) == told
    return told


def message_told(message: dict[str, Any]) -> Told:
    """NOTE: arguments are JSON here, so they are written anew."""
    told = Told()
    for block in message["content"]:
        match block["type"]:
            case "text":
                told.text += block["text"]
            case "thinking":
                told.reasoning += block["thinking"]
            case "tool_use":
                told.calls.append((block["name"], json.dumps(block["input"], ensure_ascii=False)))
    return told


def message_events_told(events: Iterable[dict[str, Any]]) -> Told:
    told = Told()
    for event in events:
        match event:
            case {"type": "content_block_start", "content_block": {"type": "tool_use", "name": name}}:
                told.calls.append((name, ""))
            case {"delta": {"type": "text_delta", "text": text}}:
                told.text += text
            case {"delta": {"type": "thinking_delta", "thinking": text}}:
                told.reasoning += text
            case {"delta": {"type": "input_json_delta", "partial_json": text}}:
                told.add(text)
    return told


def chat_writer() -> ChoicesWriter:
    return ChoicesWriter(ChatBody(messages=[]), ChatFormat(TokenTexts(TOKENIZER)), "m")


def responses_writer() -> ResponsesWriter:
    return ResponsesWriter(ResponsesBody(input="x"), "m", is_large=False)


def messages_writer() -> MessagesWriter:
    return MessagesWriter("m", Fields())


APIS: dict[str, tuple[Callable[[], AnswerWriter], Callable[[Any], Told], Callable[[Any], Told]]] = {
    "chat": (chat_writer, lambda answer: chat_told(answer["choices"][0]["message"]), chat_events_told),
    "responses": (responses_writer, response_told, response_events_told),
    "messages": (messages_writer, message_told, message_events_told),
}

arguments = st.dictionaries(st.text(max_size=4), st.text(max_size=6) | st.integers(), max_size=3).map(
    json.dumps
)
calls = st.tuples(st.just("call"), st.sampled_from(["f", "g"]), arguments)
texts = st.tuples(st.sampled_from(["text", "reasoning"]), st.text(min_size=1, max_size=9), st.just(""))
answers = st.lists(calls | texts, max_size=6)


@st.composite
def split_answers(draw: st.DrawFn) -> tuple[Told, list[Piece]]:
    """Return an answer, and its parts however they may arrive."""
    told, parts = Told(), list[Part]()
    for kind, text, json_text in draw(answers):
        kinds: dict[str, Callable[[str], Part]] = {
            "text": Content,
            "reasoning": Reasoning,
            "call": CallArguments,
        }
        if kind == "call":
            told.calls.append((text, json_text))
            parts.append(CallStart(text))
            text = json_text
        elif kind == "text":
            told.text += text
        else:
            told.reasoning += text
        cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=3)))
        parts += [kinds[kind](text[a:b]) for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    cuts = sorted(draw(st.lists(st.integers(0, len(parts)), max_size=4)))
    pieces = [Piece(0, "", parts=parts[a:b]) for a, b in zip([0, *cuts], [*cuts, len(parts)], strict=True)]
    return told, [*pieces, Piece(0, "", draw(st.sampled_from(["end", "length"])))]


@settings(max_examples=100, deadline=None)
@given(split_answers())
def test_all_apis_tell_the_same_however_an_answer_arrives(answer: tuple[Told, list[Piece]]) -> None:
    told, pieces = answer
    for api, (make, told_whole, told_events) in APIS.items():
        whole = told_whole(json.loads(make().document([pieces], GENERATIONS)))
        written_anew = [(name, json.dumps(json.loads(text), ensure_ascii=False)) for name, text in told.calls]
        assert whole == (Told(told.text, told.reasoning, written_anew) if api == "messages" else told)
        assert told_events(events_of(streamed(make(), pieces))) == told
    check_order(pieces)


def streamed(writer: AnswerWriter, pieces: Sequence[Piece]) -> bytes:
    *batches, last = [[piece] for piece in pieces]
    if batches:
        last = [*batches.pop(), *last]  # They come together.
    data = b"".join(writer.events(batch, GENERATIONS) for batch in (*batches, last))
    return data + writer.last_events(GENERATIONS)


def check_order(pieces: Sequence[Piece]) -> None:
    """Check that events of Responses and Messages are complete and in order."""
    events = events_of(streamed(responses_writer(), pieces))
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    places = [event["output_index"] for event in events if "output_index" in event]
    assert places == sorted(places)
    last = events[-1]["response"]
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert last["output"] == done
    assert [item["status"] for item in done] == [*["completed"] * (len(done) - 1), last["status"]]
    open_blocks: set[int] = set()
    for event in events_of(streamed(messages_writer(), pieces)):
        if event["type"] == "content_block_start":
            assert not open_blocks
            open_blocks.add(event["index"])
        elif event["type"] == "content_block_stop":
            open_blocks.remove(event["index"])
        elif event["type"] == "content_block_delta":
            assert event["index"] in open_blocks
    assert not open_blocks


def test_an_answer_without_anything_is_an_empty_text() -> None:
    pieces = [Piece(0, "", "end")]
    (item,) = json.loads(responses_writer().document([pieces], GENERATIONS))["output"]
    assert item["content"][0]["text"] == ""
    (begun, *_, ended, last) = events_of(streamed(responses_writer(), pieces))
    assert (begun["type"], ended["type"]) == ("response.created", "response.output_item.done")
    assert last["response"]["output"] == [ended["item"]]
    message = json.loads(messages_writer().document([pieces], GENERATIONS))
    assert message["content"] == []
    assert (message["usage"]["input_tokens"], message["usage"]["cache_read_input_tokens"]) == (2, 1)


def test_arguments_that_were_cut_are_told_as_far_as_they_go() -> None:
    parts: list[Part] = [Content("so"), CallStart("f", "id1"), CallArguments('{"a": 1, "b": [2, "x')]
    pieces = [Piece(0, "", parts=parts), Piece(0, "", "length")]
    message = json.loads(messages_writer().document([pieces], GENERATIONS))
    assert message["content"][1]["input"] == {"a": 1, "b": [2, "x"]}
    assert message["stop_reason"] == "max_tokens"
    response = json.loads(responses_writer().document([pieces], GENERATIONS))
    (text, item) = response["output"]
    assert text["status"] == "completed"
    assert (item["status"], item["call_id"], response["status"]) == ("incomplete", "id1", "incomplete")


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (r'{"a": 1, "b": "x\ud800\ud83d\ude00"}', {"a": 1, "b": "x?😀"}),
        ('{"code": "a\n\tb"}', {"code": "a\n\tb"}),
        ('{"a": 1,}', {"arguments": '{"a": 1,}'}),
        ("{'a': 1}", {"arguments": "{'a': 1}"}),
        ("[1]", {"arguments": "[1]"}),
        ('{"a": ' + "[" * 300, {"arguments": '{"a": ' + "[" * 300}),
        ("", {}),
        (" \n", {}),
        ("null", {}),
    ],
)
def test_no_argument_of_a_call_is_lost_if_it_is_not_valid_json(written: str, told: dict[str, object]) -> None:
    parts: list[Part] = [CallStart("f", "id1"), CallArguments(written)]
    message = json.loads(messages_writer().document([[Piece(0, "", "end", parts=parts)]], GENERATIONS))
    assert message["content"][0]["input"] == told


def test_an_error_ends_a_stream_as_failed() -> None:
    pieces = [Piece(0, "", parts=[Content("Hel")])]
    responses, messages = responses_writer(), messages_writer()
    responses.events(pieces, GENERATIONS)
    error = RequestTimedOut(timeout_s=1)
    event, failed = events_of(responses.error_events(error))
    assert (event["type"], event["code"]) == ("error", "E2601")
    assert failed["response"]["error"]["code"] == "E2601"
    assert failed["response"]["output"][0]["status"] == "incomplete"
    (event,) = events_of(messages.error_events(error))
    assert (event["type"], event["error"]["type"]) == ("error", "timeout_error")


TOOL = {"name": "weather", "description": "Of a city.", "strict": False}
SCHEMA = {"type": "object"}
ASKED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "Warm?"}],
        "tools": [{"type": "function", "function": {**TOOL, "parameters": SCHEMA}}],
    },
    "/v1/responses": {"input": "Warm?", "tools": [{"type": "function", **TOOL, "parameters": SCHEMA}]},
    "/v1/messages": {
        "messages": [{"role": "user", "content": "Warm?"}],
        "tools": [{**TOOL, "input_schema": SCHEMA}],
        "max_tokens": 1000,
    },
}


@pytest.mark.parametrize("step_tokens", [1, 7])
def test_a_models_tokens_are_told_alike(tmp_path_factory: pytest.TempPathFactory, step_tokens: int) -> None:
    model = WritingModel(tmp_path_factory.mktemp("model"))
    model.step_tokens = step_tokens
    found = []
    usages = []
    for (path, body), (_, told_whole, told_events) in zip(ASKED.items(), APIS.values(), strict=True):
        answer = model.ask(path, **body)
        usages.append([value for value in answer["usage"].values() if isinstance(value, int)][:2])
        found.append(told_whole(answer))
        found.append(told_events(events_of(model.post(path, **body, stream=True).content)))
    assert found == [found[0]] * len(found)
    assert found[0].reasoning == "Two cities."
    assert len(found[0].calls) == CALLS.count("<tool_call>")
    assert usages == [usages[0]] * 3
