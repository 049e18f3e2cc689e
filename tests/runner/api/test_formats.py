"""Parts of an answer as chat completions: ids, reasons, options. ``test_three_apis`` has the rest."""

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
    return as_json(ChatFormat(TOKENS, **options).whole(arrived))


def test_each_text_has_calls_with_ids_of_their_own_or_the_models() -> None:
    formatter, made_ids = ChatFormat(TOKENS), set()
    for index in (0, 1):
        events = streamed(pieces(ANSWER, 3, index=index), formatter)
        calls = [call for event in events for call in event["delta"].get("tool_calls", ()) if "id" in call]
        assert [call["index"] for call in calls] == [0, 1]
        assert calls[0]["id"].startswith("call_")
        assert calls[1]["id"] == "own_id"
        made_ids.add(calls[0]["id"])
    message = whole(pieces(ANSWER[4:], 1))["message"]
    assert (message["content"], message["tool_calls"][1]["id"]) == (None, "own_id")
    assert len(made_ids | {message["tool_calls"][0]["id"]}) == 3


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


def test_reasoning_can_be_left_out() -> None:
    assert "reasoning" not in whole(pieces(ANSWER, 2), includes_reasoning=False)["message"]
    left = streamed(pieces(ANSWER, 1), ChatFormat(TOKENS, includes_reasoning=False))
    assert not any(choice["delta"].keys() & {"reasoning", "reasoning_content"} for choice in left)


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
