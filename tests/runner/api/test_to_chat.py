"""Bodies of the Responses and Messages APIs become the body of the same chat."""

import json
import tracemalloc
from typing import Any

import pytest

from errors.coded_error import CodedError
from errors.requests import InvalidInput
from runner.api.error_response import describe
from runner.api.generations import Piece
from runner.api.messages.bodies import CountTokensBody
from runner.api.messages.to_chat import chat_body as chat_of_messages
from runner.api.responses.bodies import ResponsesBody
from runner.api.responses.to_chat import chat_body as chat_of_response
from runner.api.responses.to_chat import fields_of
from runner.api.responses.writer import ResponsesWriter
from runner.api.validation import convert
from runner.chat.families.parts import CallStart, Part
from tests.runner.api.test_three_apis import GENERATIONS

TOOL = {"name": "weather", "description": "Of a city.", "strict": False}
SCHEMA = {"type": "object"}
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "Be short."},
    {"role": "user", "content": "Warm?"},
    {
        "role": "assistant",
        "reasoning_content": "Where?",
        "content": "Let me see.",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": {"city": "Paris"}}}
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "20"},
    {"role": "user", "content": "And now?"},
]


def test_a_conversation_of_messages_is_that_of_a_chat() -> None:
    body = {
        "system": [{"type": "text", "text": "Be short.", "cache_control": {"type": "ephemeral"}}],
        "messages": [
            {"role": "user", "content": "Warm?"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "Where?", "signature": "x"},
                    {"type": "redacted_thinking", "data": "x"},
                    {"type": "text", "text": "Let me see.", "citations": None},
                    {"type": "tool_use", "id": "c1", "name": "weather", "input": {"city": "Paris"}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c1", "content": [{"type": "text", "text": "20"}]},
                    {"type": "text", "text": "And now?"},
                ],
            },
        ],
        "tools": [{**TOOL, "input_schema": SCHEMA}],
        "tool_choice": {"type": "tool", "name": "weather", "disable_parallel_tool_use": True},
        "thinking": {"type": "enabled", "budget_tokens": 2000},
        "output_config": {"effort": "max"},
    }
    chat = chat_of_messages(convert(body, CountTokensBody), limits_thinking=True)
    assert chat.messages == CHAT
    assert chat.parallel_tool_calls is False
    assert chat.thinking_token_budget == 2000
    assert chat.reasoning_effort == "max"
    chat = chat_of_messages(
        convert(body | {"thinking": {"type": "disabled"}}, CountTokensBody), limits_thinking=True
    )
    assert chat.reasoning_effort == "none"
    assert "weather" in str(chat.tools)
    assert "weather" in str(chat.tool_choice)


def test_an_item_whose_type_is_null_is_a_message() -> None:
    items = [{"type": None, "role": "user", "content": "Warm?", "id": None}]
    assert chat_of_response(convert({"input": items}, ResponsesBody)).messages == [CHAT[1]]


def test_a_conversation_of_items_is_that_of_a_chat() -> None:
    body = {
        "instructions": "Be short.",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Warm?"}]},
            {
                "type": "reasoning",
                "id": "rs_1",
                "summary": [],
                "content": [{"type": "reasoning_text", "text": "Where?"}],
            },
            {
                "type": "message",
                "role": "assistant",
                "id": "msg_1",
                "content": [{"type": "output_text", "text": "Let me see.", "annotations": []}],
            },
            {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": '{"city": "Paris"}'},
            {"type": "function_call_output", "call_id": "c1", "output": "20"},
            {"role": "user", "content": "And now?"},
        ],
        "tools": [{"type": "function", **TOOL, "parameters": SCHEMA}],
        "tool_choice": {
            "type": "allowed_tools",
            "mode": "auto",
            "tools": [{"type": "function", "name": "weather"}],
        },
        "reasoning": {"effort": "low", "summary": "auto"},
    }
    chat = chat_of_response(convert(body, ResponsesBody))
    arguments = chat.messages[2]["tool_calls"][0]["function"]
    arguments["arguments"] = json.loads(arguments["arguments"])
    assert chat.messages == CHAT
    assert chat.reasoning_effort == "low"
    assert "weather" in str(chat.tools)
    assert "weather" in str(chat.tool_choice)


def test_leading_system_and_developer_items_are_one_system_message() -> None:
    items = [{"role": role, "content": role} for role in ("system", "developer", "user", "developer")]
    chat = chat_of_response(convert({"input": items, "instructions": "First."}, ResponsesBody))
    assert [(each["role"], each["content"]) for each in chat.messages] == [
        ("system", "First.\n\nsystem\n\ndeveloper"),
        ("user", "user"),
        ("system", "developer"),
    ]


def test_turns_in_a_row_are_one() -> None:
    turns = [{"role": role, "content": text} for role, text in zip("uusaauu", "1234567", strict=True)]
    for turn in turns:
        turn["role"] = {"u": "user", "s": "system", "a": "assistant"}[turn["role"]]
    expected = [("user", "1\n\n2"), ("system", "3"), ("assistant", "4\n\n5"), ("user", "6\n\n7")]
    for chat in (
        chat_of_messages(convert({"messages": turns}, CountTokensBody), limits_thinking=True),
        chat_of_response(convert({"input": turns}, ResponsesBody)),
    ):
        assert [(each["role"], each["content"]) for each in chat.messages] == expected


def test_images_are_parts_of_a_chat_in_their_order() -> None:
    def image(url: str) -> dict[str, Any]:
        return {"type": "image_url", "image_url": {"url": url}}

    text = [{"type": "text", "text": text} for text in ("0", "1", "2")]
    expected = [
        {"role": "user", "content": [text[0], text[1], image("data:image/png;base64,QUJD"), text[2]]},
        {"role": "tool", "tool_call_id": "c1", "content": [image("https://a/b.png")]},
    ]
    sources = (
        {"type": "base64", "media_type": "image/png", "data": "QUJD"},
        {"type": "url", "url": "https://a/b.png"},
    )
    blocks = [{"type": "image", "source": each} for each in sources]
    turns = [
        {"role": "user", "content": "0"},
        {"role": "user", "content": [text[1], blocks[0], text[2]]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [blocks[1]]}]},
    ]
    body = convert({"messages": turns}, CountTokensBody)
    assert chat_of_messages(body, limits_thinking=True).messages == expected
    parts = [
        {"type": "input_image", "image_url": each["image_url"]["url"]}
        for each in map(image, ("data:image/png;base64,QUJD", "https://a/b.png"))
    ]
    first, second = ({"type": "input_text", "text": each["text"]} for each in text[1:])
    items = [
        {"role": "user", "content": "0"},
        {"role": "user", "content": [first, parts[0], second]},
        {"type": "function_call_output", "call_id": "c1", "output": [parts[1]]},
    ]
    assert chat_of_response(convert({"input": items}, ResponsesBody)).messages == expected


@pytest.mark.parametrize("arguments", [{"city": "Paris"}, '{"city": "Par', "", None, [1]])
def test_a_model_may_have_written_anything_as_arguments(arguments: object) -> None:
    use = {"type": "tool_use", "id": "c1", "name": "weather", "input": arguments}
    call = {"type": "function_call", "call_id": "c1", "name": "weather", "arguments": arguments}
    messages = {"messages": [{"role": "assistant", "content": [use]}]}
    for chat in (
        chat_of_messages(convert(messages, CountTokensBody), limits_thinking=True),
        chat_of_response(convert({"input": [call]}, ResponsesBody)),
    ):
        ((made,),) = (each["tool_calls"] for each in chat.messages)
        assert made["function"]["arguments"] == arguments


@pytest.mark.parametrize(
    ("field", "value", "named"),
    [
        (
            "tool_choice",
            {"type": "allowed_tools", "mode": "any", "tools": [{"name": "f"}]},
            "tool_choice.mode",
        ),
        (
            "tool_choice",
            {"type": "allowed_tools", "mode": "auto", "tools": [{"name": "?"}]},
            "tool_choice.tools[0].name",
        ),
        ("tools", [{"type": "function", "name": "?"}], "tools[0].name"),
        ("reasoning", {"effort": "most"}, "reasoning.effort"),
        ("input", [{"type": "reasoning", "content": [{"type": "x", "text": 1}]}], "input[0].content[0].text"),
        (
            "input",
            [{"type": "function_call", "call_id": "1", "name": "f", "arguments": 5}],
            "input[0].arguments",
        ),
        (
            "input",
            [{"role": "user", "content": [{"type": "input_file", "file_id": "x"}]}],
            "input[0].content[0].type",
        ),
        ("input", [{"type": "item_reference", "id": "msg_1"}], "input[0].type"),
        ("input", [], "input"),
        ("previous_response_id", "resp_1", "previous_response_id"),
        ("conversation", {"id": "conv_1"}, "conversation"),
        ("background", True, "background"),
        ("include", ["message.output_text.logprobs"], "include[0]"),
        ("tool_choice", {"type": "mcp"}, "tool_choice"),
        ("tools", [{"type": "web_search"}], "tools[0].type"),
    ],
)
def test_an_error_names_the_responses_own_field(field: str, value: object, named: str) -> None:
    body = convert({"input": "x", field: value}, ResponsesBody)
    with pytest.raises(CodedError) as raised:
        chat_of_response(body)
    sentence = describe(raised.value, fields_of(body)).message
    assert sentence.startswith((f"{named} must be ", f"The field {named} is not supported"))


def test_functions_of_a_namespace_are_told_apart_by_it() -> None:
    function = {"type": "function", "name": "search"}
    spaces = [{"type": "namespace", "name": name, "tools": [function]} for name in ("mcp__a__", "b")]
    call = {"type": "function_call", "call_id": "1", "name": "search", "arguments": "{}", "namespace": "b"}
    body = convert({"input": [call], "tools": [*spaces, function]}, ResponsesBody)
    chat = chat_of_response(body)
    assert [tool.function.name for tool in chat.tools or ()] == ["mcp__a__search", "b__search", "search"]
    assert chat.messages[0]["tool_calls"][0]["function"]["name"] == "b__search"
    parts: list[Part] = [CallStart("mcp__a__search"), CallStart("search")]
    writer = ResponsesWriter(body, "m", is_large=False)
    writer.events([Piece(0, "", parts=parts)], GENERATIONS)
    output = json.loads(writer.document([[Piece(0, "", "end")]], GENERATIONS))["output"]
    assert [(item.get("namespace"), item["name"]) for item in output] == [
        ("mcp__a__", "search"),
        (None, "search"),
    ]


def test_a_tool_in_a_namespace_that_is_no_function_is_refused() -> None:
    tools = [{"type": "namespace", "name": "a", "tools": [{"type": "custom", "name": "f"}]}]
    with pytest.raises(InvalidInput, match=r"tools\[0\]\.tools\[0\]\.type must be function"):
        chat_of_response(convert({"input": "x", "tools": tools}, ResponsesBody))


def test_a_name_that_no_tool_can_have_is_found_after_a_namespace() -> None:
    functions = [{"type": "function", "name": name} for name in ("f", "g", "h", "not a name")]
    spaces = [{"type": "namespace", "name": name, "tools": functions[:3]} for name in ("a", "b")]
    body = {"input": "x", "tools": [*spaces, functions[3]]}
    with pytest.raises(InvalidInput, match=r" tools\[2\]\.name must be "):
        chat_of_response(convert(body, ResponsesBody))
    spaces[1]["name"] = "b" * 127
    with pytest.raises(InvalidInput, match=r" tools\[1\]\.tools\[0\]\.name must be "):
        chat_of_response(convert(body, ResponsesBody))


def test_a_long_namespace_is_refused_before_it_is_repeated() -> None:
    functions = [{"type": "function", "name": f"f{number}"} for number in range(1000)]
    tools = [{"type": "namespace", "name": "a" * 100_000, "tools": functions}]
    body = convert({"input": "x", "tools": tools}, ResponsesBody)
    tracemalloc.start()
    try:
        ResponsesWriter(body, "m", is_large=True)
        with pytest.raises(InvalidInput, match=r" tools\[0\]\.name must be "):
            chat_of_response(body)
        assert tracemalloc.get_traced_memory()[1] < 4 << 20
    finally:
        tracemalloc.stop()
