"""Parts of an answer as chat completions, whole and as events: both have the same message."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from runner.api.generations import Piece
from runner.api.openai.formats import ChatFormat, TokenTexts
from runner.chat.families.parts import CallArguments, CallStart, Content, Part, Reasoning
from runner.engines.protocol.messages import FinishReason, TokenLogProb
from runner.generation.text_decoder import ReportedToken
from tests.runner.paced_engine import make_tokenizer

TOKENS = TokenTexts(make_tokenizer())
ANSWER: list[Part] = [
    *(Reasoning("The user "), Reasoning("asks."), Content("Let me "), Content("see.")),
    *(CallStart("look"), CallArguments('{"at": '), CallArguments("1}")),
    *(CallStart("wait", "own_id"), CallArguments("{}")),
]


def pieces(parts: Sequence[Part], size: int, reason: FinishReason = "end", index: int = 0) -> list[Piece]:
    groups = [parts[at : at + size] for at in range(0, len(parts), size)]
    return [*(Piece(index, "", None, [], group) for group in groups), Piece(index, "", reason)]


def as_json(value: object) -> Any:
    return msgspec.json.decode(msgspec.json.encode(value))


def streamed(arrived: Sequence[Piece], formatter: ChatFormat | None = None) -> list[dict[str, Any]]:
    formatter = formatter or ChatFormat(TOKENS)
    opening = formatter.opening(arrived[0].index)
    choices: list[Any] = as_json(
        [opening, *(event for piece in arrived for event in formatter.events(piece))]
    )
    return choices


def whole(arrived: Sequence[Piece], **options: bool) -> dict[str, Any]:
    choice: dict[str, Any] = as_json(ChatFormat(TOKENS, **options).whole(arrived))
    return choice


def put_together(choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Join choices as clients do."""
    message: dict[str, Any] = {"content": None}
    calls: list[dict[str, Any]] = []
    for choice in choices:
        delta = choice["delta"]
        for name in ("content", "reasoning_content", "reasoning"):
            if delta.get(name):
                message[name] = (message.get(name) or "") + delta[name]
        for call in delta.get("tool_calls", ()):
            if call["index"] == len(calls):
                assert call["function"]["arguments"] == ""
                calls.append({key: call[key] for key in ("id", "function", "type")})
            else:
                assert call.keys() == {"index", "function"}
                assert call["function"].keys() == {"arguments"}
                calls[call["index"]]["function"]["arguments"] += call["function"]["arguments"]
    return {**message, "role": "assistant", **({"tool_calls": calls} if calls else {})}


@pytest.mark.parametrize("size", range(1, len(ANSWER) + 1))
def test_events_put_together_are_the_whole_message(size: int) -> None:
    choices = streamed(pieces(ANSWER, size))
    assert [choice["delta"].get("role") for choice in choices] == ["assistant"] + [None] * (len(choices) - 1)
    reasons = [choice["finish_reason"] for choice in choices]
    assert reasons == [None] * (len(choices) - 1) + ["tool_calls"]
    message = put_together(choices)
    first, second = message["tool_calls"]
    assert (first["function"], second["id"]) == ({"name": "look", "arguments": '{"at": 1}'}, "own_id")
    assert first["id"].startswith("call_")
    expected = whole(pieces(ANSWER, size))["message"]
    expected["tool_calls"][0]["id"] = first["id"]
    assert message == expected
    assert message["reasoning"] == message["reasoning_content"] == "The user asks."


def test_an_event_has_one_kind_of_part() -> None:
    for choice in streamed(pieces(ANSWER, len(ANSWER)))[1:]:
        assert len(choice["delta"].keys() - {"reasoning"}) <= 1
        assert len(choice["delta"].get("tool_calls", ())) <= 1


def test_content_is_null_beside_calls_alone() -> None:
    choice = whole(pieces([CallStart("look"), CallArguments("{}")], 1))
    assert choice["message"]["content"] is None
    assert choice["finish_reason"] == "tool_calls"


@pytest.mark.parametrize(
    ("parts", "reason", "shown"),
    [
        (ANSWER, "length", "length"),
        (ANSWER, "stop", "tool_calls"),
        ([Content("Paris.")], "end", "stop"),
        ([Reasoning("Hm.")], "length", "length"),
        ([], "end", "stop"),
    ],
)
def test_the_reason_is_calls_where_there_are_some_and_the_text_ended(
    parts: list[Part], reason: FinishReason, shown: str
) -> None:
    assert streamed(pieces(parts, 2, reason))[-1]["finish_reason"] == shown
    assert whole(pieces(parts, 2, reason))["finish_reason"] == shown


def test_calls_of_several_texts_are_counted_by_themselves() -> None:
    formatter = ChatFormat(TOKENS)
    for index in (0, 1):
        message = put_together(streamed(pieces(ANSWER, 3, index=index), formatter))
        assert len(message["tool_calls"]) == 2


def test_reasoning_can_be_left_out() -> None:
    assert "reasoning" not in whole(pieces(ANSWER, 2), includes_reasoning=False)["message"]
    left = streamed(pieces(ANSWER, 1), ChatFormat(TOKENS, includes_reasoning=False))
    assert not any(choice["delta"].keys() & {"reasoning", "reasoning_content"} for choice in left)
    assert put_together(left)["content"] == "Let me see."


def test_log_probabilities_are_sent_once_with_the_last_event_of_their_piece() -> None:
    piece = Piece(0, "", None, [ReportedToken(5, TokenLogProb(-1.0))], ANSWER)
    choices = streamed([piece])
    assert [bool(choice["logprobs"]) for choice in choices] == [False] * (len(choices) - 1) + [True]


def test_an_answer_without_parts_is_as_it_ever_was() -> None:
    plain = [Piece(0, "Par"), Piece(0, "is.", "end")]
    assert whole(plain)["message"] == {"content": "Paris.", "role": "assistant"}
    assert [choice["delta"] for choice in streamed(plain)] == [
        {"role": "assistant", "content": ""},
        {"content": "Par"},
        {"content": "is."},
    ]


def test_the_time_of_a_call_grows_with_its_length_alone() -> None:
    times = []
    for count in (10_000, 80_000):
        piece = Piece(0, "", "end", parts=[CallStart("f"), *[CallArguments("12345678")] * count])
        started_s = time.process_time()
        (call,) = whole([piece])["message"]["tool_calls"]
        times.append(time.process_time() - started_s)
        assert len(call["function"]["arguments"]) == 8 * count
    assert times[1] < 20 * times[0] + 0.05
