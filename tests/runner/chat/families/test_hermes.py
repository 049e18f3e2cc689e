"""Answers of Hermes and Qwen."""

from __future__ import annotations

import itertools

import pytest

from runner.chat.families.json_families import HERMES
from tests.runner.chat.families.answers import (
    Call,
    Message,
    Writer,
    decoder,
    message_of,
    read,
    tokenizer_with,
    tool_use,
)

TOKENS = tokenizer_with(("<|im_end|>",), ("<tool_call>", "</tool_call>", "<think>", "</think>"))
TEXT = tokenizer_with(("<|im_end|>",))
TOOLS = tool_use(get_weather={"city": {"type": "string"}})


def read_every_way(writer: Writer, *, starts_in_reasoning: bool = False) -> Message:
    """The message, which has to be the same for every two cuts."""
    ids = writer.ids
    messages = []
    ways = [[[each] for each in ids], [ids]]
    ways += [[ids[:cut], ids[cut:]] for cut in range(1, len(ids))]
    ways += [[ids[:one], ids[one:two], ids[two:]] for one, two in itertools.combinations(range(len(ids)), 2)][
        ::37
    ]
    counts = set()
    for chunks in ways:
        made = decoder(HERMES, writer.tokenizer, tools=TOOLS, starts_in_reasoning=starts_in_reasoning)
        messages.append(message_of(read(made, chunks)))
        counts.add(made.reasoning_token_count)
    assert all(message == messages[0] for message in messages)
    assert len(counts) == 1
    return messages[0]


@pytest.mark.parametrize("tokenizer", [TOKENS, TEXT])
def test_a_call_after_reasoning_and_content(tokenizer) -> None:
    writer = Writer(tokenizer).marker("<think>").text("\nIt is é.\n").marker("</think>").text("\n\nI look. ")
    writer.marker("<tool_call>").text('\n{"name": "get_weather", "arguments": {"city": "a</tool_call>}"}}\n')
    writer.marker("</tool_call>").text("\n").marker("<tool_call>").text('\n{"name": "x"}\n').marker(
        "</tool_call>"
    )
    calls = [Call("get_weather", '{"city": "a</tool_call>}"}'), Call("x", "{}")]
    assert read_every_way(writer) == Message("I look. ", "It is é.", calls)


@pytest.mark.parametrize("tokenizer", [TOKENS, TEXT])
@pytest.mark.parametrize(
    "text", ["oops", '{"foo": 1}', '{"name": 1}', "[]", '{"name": "a" ]', '{"name" "a"}']
)
def test_what_is_no_call_stays_text(tokenizer, text: str) -> None:
    writer = Writer(tokenizer).text("Hi ").marker("<tool_call>").text(text).text(" there")
    expected = [Call("a", "")] if text == '{"name": "a" ]' else []
    assert read_every_way(writer) == Message(
        "Hi " + ("" if expected else f"<tool_call>{text} there"), "", expected
    )


def test_ordinary_tokens_that_spell_a_marker_stay_text() -> None:
    text = '<think> <tool_call>{"name": "a", "arguments": {}}</tool_call>'
    assert read_every_way(Writer(TOKENS).text(text)) == Message(text)


def test_reasoning_that_the_prompt_opened_or_that_has_no_end() -> None:
    writer = Writer(TOKENS).text("Well </think> ").marker("<tool_call>").text(" hm")
    assert read_every_way(writer, starts_in_reasoning=True) == Message("", "Well </think> <tool_call> hm")
    writer.marker("</think>").text("\n\nYes")
    assert read_every_way(writer, starts_in_reasoning=True) == Message("Yes", "Well </think> <tool_call> hm")
    assert HERMES.opens_reasoning("<|im_start|>assistant\n<think>\n")
    assert not HERMES.opens_reasoning("<|im_start|>assistant\n<think>\n\n</think>\n\n")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", Message("a ")),
        ('{"name": "ab', Message("a ")),
        ('{"name": "ab"', Message("a ", "", [Call("ab", "")])),
        ('{"name": "ab", "arguments": {"x": "', Message("a ", "", [Call("ab", '{"x": "')])),
    ],
)
def test_a_call_that_is_cut_off_stays_as_far_as_it_came(text: str, message: Message) -> None:
    assert read_every_way(Writer(TOKENS).text("a ").marker("<tool_call>").text(text)) == message
