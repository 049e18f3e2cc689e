"""A body that does not fit is refused with the field's path, what it must be and what it is, all as facts."""

import random
from typing import Any

import msgspec
import pytest
from msgspec import inspect

from errors.api import InvalidBody, UnknownField
from errors.coded_error import CodedError
from errors.requests import InvalidInput
from runner.api.messages.bodies import MessagesBody
from runner.api.openai.bodies import (
    Body,
    ChatBody,
    CompletionBody,
    DetokenizeBody,
    EmbeddingBody,
    TokenizeBody,
)
from runner.api.responses.bodies import ResponsesBody
from runner.api.validation import check_document, decode
from tests import fast
from tests.fuzz.bodies import random_document
from tests.fuzz.choices import Choices


def refusal(document: object, kind: type[Body] = CompletionBody) -> CodedError:
    with pytest.raises(CodedError) as refused:
        check_document(document, kind)
    return refused.value


@pytest.mark.parametrize(
    ("field", "value", "name", "expected", "shown"),
    [
        ("max_tokens", 0, "max_tokens", "a whole number from 1 to 2147483647", 0),
        ("max_tokens", 5.0, "max_tokens", "a whole number from 1 to 2147483647", 5.0),
        ("max_tokens", True, "max_tokens", "a whole number from 1 to 2147483647", True),
        ("top_k", -2, "top_k", "a whole number of at least -1", -2),
        ("temperature", 2.1, "temperature", "a number from 0 to 2", 2.1),
        ("repetition_penalty", 10**400, "repetition_penalty", "a number of at least 0.01", 10**400),
        ("repetition_penalty", 0, "repetition_penalty", "a number of at least 0.01", 0),
        ("stream", "yes", "stream", "true or false", "yes"),
        ("stop", 5, "stop", "a string that is not empty or a list of at most 16 items", 5),
        ("stop", ["a", ""], "stop[1]", "a string that is not empty", ""),
        ("prompt", [[1], []], "prompt[1]", "a list that is not empty", []),
        ("prompt", None, "prompt", "a string or a list that is not empty", None),
        ("logit_bias", {"5": 101}, "logit_bias.5", "a number from -100 to 100", 101),
        ("response_format", {}, "response_format.type", "text or json_object or json_schema", None),
        ("response_format", {"type": 5}, "response_format.type", "text or json_object or json_schema", 5),
        (
            "response_format",
            {"type": "json_schema", "json_schema": {"name": "x"}},
            *("response_format.json_schema.schema", "given", None),
        ),
    ],
)
def test_a_wrong_value_is_named_by_its_path(
    field: str, value: object, name: str, expected: str, shown: object
) -> None:
    error = refusal({"prompt": "Earth", field: value})
    assert isinstance(error, InvalidInput)
    assert error.facts == {"name": name, "expected": expected, "value": shown}


def test_a_missing_field_and_a_value_that_is_none_of_a_few_are_named() -> None:
    assert refusal({}).facts == {"name": "prompt", "expected": "given", "value": None}
    refused = refusal({"messages": [], "stream_options": {}, "tool_choice": "any"}, ChatBody)
    expected = "auto or none or required or an object"
    assert refused.facts == {"name": "tool_choice", "expected": expected, "value": "any"}


@pytest.mark.parametrize(
    ("document", "name", "remedy"),
    [
        ({"max_token": 5}, "max_token", "leave it out, or send max_tokens if that is meant"),
        ({"prompt": 5, "store": 1}, "prompt", None),
        ({"max_output_tokens": 5}, "max_output_tokens", "leave it out, or send max_tokens if that is meant"),
        ({"stop_sequences": ["x"]}, "stop_sequences", "leave it out, or send stop if that is meant"),
        ({"input": "x"}, "input", "leave it out, or send prompt if that is meant"),
        ({"prompt": "a", "frobnicate": 1}, "frobnicate", "leave it out"),
        ({"store": 1, "prompt": 5}, "store", "leave it out"),
        ({"stream_options": {"include_usages": True}}, "stream_options.include_usages", None),
        ({"response_format": {"type": "text", "strict": 1}}, "response_format.strict", "leave it out"),
        (
            {"response_format": {"type": "json_schema", "schema": {}}},
            "response_format.schema",
            "leave it out, and send response_format.json_schema, which is missing",
        ),
    ],
)
def test_the_first_field_that_does_not_fit_is_named(
    document: dict[str, object], name: str, remedy: str | None
) -> None:
    error = refusal(document)
    assert error.facts["name"] == name
    assert isinstance(error, InvalidInput if name == "prompt" else UnknownField)
    assert remedy in (None, error.facts.get("remedy"))


@pytest.mark.parametrize("document", [[], 5, None, "prompt"])
def test_a_body_that_is_no_object_has_no_field_to_name(document: object) -> None:
    assert isinstance(refusal(document), InvalidBody)


WRONG: dict[type[Body], tuple[dict[str, Any], dict[str, tuple[object, ...]]]] = {
    CompletionBody: (
        {"prompt": "Earth"},
        {
            "max_tokens": (0, 1 << 40, "many"),
            "min_tokens": (-1,),
            "top_p": (1.1,),
            "min_p": (-0.1,),
            "presence_penalty": (3,),
            "seed": (1.5,),
            "n": (0, 129),
            "stop": ([""], ["a"] * 17, 5),
            "prompt": ([], [[]], [-1], None),
            "logprobs": (21,),
            "best_of": (2,),
            "suffix": ("x",),
        },
    ),
    ChatBody: (
        {"messages": [{"role": "user", "content": "Earth"}]},
        {
            "messages": ("Earth",),
            "max_completion_tokens": (0,),
            "tool_choice": ("any",),
            "reasoning_effort": ("highest",),
            "functions": ([{"name": "look"}],),
            "audio": ({},),
            "echo": (True,),
        },
    ),
    ResponsesBody: (
        {"input": "Earth"},
        {
            "max_tokens": (5,),
            "max_output_tokens": (0,),
            "truncation": ("auto",),
        },
    ),
    MessagesBody: (
        {"messages": [{"role": "user", "content": "Earth"}], "max_tokens": 5},
        {
            "messages": ([{"role": "user"}], [{"role": "tool", "content": "x"}]),
            "max_tokens": (None,),
            "mcp_servers": ([{"type": "url"}],),
            "stop_sequences": ([""],),
            "top_k": (-2,),
        },
    ),
}


def test_a_field_out_of_its_bounds_is_named() -> None:
    for kind, (asked, fields) in WRONG.items():
        for field, values in fields.items():
            for value in values:
                error = refusal({**asked, field: value}, kind)
                assert str(error.facts["name"]).startswith(field), (kind, field, value)


SCHEMA = {"enum": [None], "properties": {"a": {"default": None}}}
DESCRIBED = {"name": "x", "schema": SCHEMA}
FUNCTION = {"name": "f", "parameters": SCHEMA}
WHOLE: list[tuple[type[Body], dict[str, Any]]] = [
    (CompletionBody, {"prompt": ["a"], "stream_options": {}, "structured_outputs": {"json": SCHEMA}}),
    (
        ChatBody,
        {
            "messages": [{"role": "user", "content": None}],
            "response_format": {"type": "json_schema", "json_schema": DESCRIBED},
            "tools": [{"type": "function", "function": FUNCTION}],
            "tool_choice": {
                "type": "allowed_tools",
                "allowed_tools": {"mode": "auto", "tools": [{"type": "function", "function": {"name": "f"}}]},
            },
            "chat_template_kwargs": {"a": None},
            "logit_bias": {"5": 1},
            "metadata": {},
        },
    ),
    (EmbeddingBody, {"input": "a"}),
    (TokenizeBody, {"prompt": "a", "tools": [{"type": "function", "function": FUNCTION}]}),
    (DetokenizeBody, {"tokens": [5]}),
    (
        ResponsesBody,
        {"input": "a", "reasoning": {}, "text": {"format": {"type": "json_schema", **DESCRIBED}}},
    ),
    (
        MessagesBody,
        {
            "max_tokens": 5,
            "messages": [
                {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]},
                {
                    "role": "assistant",
                    "content": [{"type": "tool_use", "id": "a", "name": "f", "input": {"b": None}}],
                },
            ],
            "tools": [{"name": "f", "input_schema": SCHEMA}],
            "tool_choice": {"type": "auto"},
            "thinking": {"type": "adaptive"},
            "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}},
        },
    ),
]


def with_nulls(value: Any, kind: inspect.Type) -> Any:
    """With a null for each field that is not in an object, and for one that nobody knows."""
    for each in kind.types if isinstance(kind, inspect.UnionType) else [kind]:
        while isinstance(each, inspect.Metadata):
            each = each.type
        if isinstance(each, inspect.ListType) and isinstance(value, list):
            return [with_nulls(item, each.item_type) for item in value]
        if isinstance(each, inspect.DictType) and isinstance(value, dict):
            return value if isinstance(each.value_type, inspect.AnyType) else {**value, "7": None}
        if not isinstance(each, inspect.StructType) or not isinstance(value, dict):
            continue
        if each.tag_field is None or value.get(each.tag_field) == each.tag:
            types = {field.encode_name: field.type for field in each.fields}
            known = {key: with_nulls(item, types.get(key, inspect.AnyType())) for key, item in value.items()}
            return {"unknown": None, **dict.fromkeys(types), **known}
    return value


@pytest.mark.parametrize(("kind", "document"), WHOLE)
def test_null_counts_as_not_sent_at_every_place(kind: type[Body], document: dict[str, Any]) -> None:
    filled = with_nulls(document, inspect.type_info(kind))
    assert len(filled) > len(document)
    sent = {key: item for key, item in document.items() if item not in ({}, None)}
    decoded = decode(bytearray(msgspec.json.encode(filled)), kind)
    assert decoded == decode(bytearray(msgspec.json.encode(document)), kind)
    assert sent.keys() <= {name for name in decoded.__struct_fields__ if getattr(decoded, name) is not None}


@pytest.mark.parametrize(
    ("kind", "name", "value"),
    [
        (MessagesBody, "thinking", {"type": "enabled", "budget_tokens": 1024}),
        (MessagesBody, "thinking", {"type": "disabled"}),
        (MessagesBody, "output_config", {"effort": "low"}),
        (MessagesBody, "output_config.format", {"type": "json_schema", "schema": SCHEMA}),
        *((MessagesBody, "tool_choice", {"type": each}) for each in ("auto", "any", "none")),
        (MessagesBody, "tool_choice", {"type": "tool", "name": "f"}),
        (ResponsesBody, "reasoning", {"effort": "low"}),
    ],
)
def test_an_unknown_field_of_an_option_is_named(kind: type[Body], name: str, value: dict[str, Any]) -> None:
    document = dict(next(each for other, each in WHOLE if other is kind))
    top, _, part = name.partition(".")

    def with_option(option: dict[str, Any]) -> dict[str, Any]:
        return {**document, top: {part: option} if part else option}

    decode(bytearray(msgspec.json.encode(with_option(value))), kind)
    error = refusal(with_option({**value, "unknown": 1}), kind)
    assert (error.code, error.facts["name"]) == ("E1601", f"{name}.unknown")


def test_a_field_that_a_router_adds_is_taken_with_the_value_that_has_no_effect() -> None:
    for kind, document in WHOLE:
        for name, values in kind.neutral_values.items():
            if name in kind.__struct_fields__:
                continue
            for value in values:
                decode(bytearray(msgspec.json.encode({**document, name: value})), kind)
            for other in ("x", [values[0]], *([int(values[0])] if isinstance(values[0], bool) else [])):
                with pytest.raises(
                    UnknownField, match=f"{name} is not supported by this server; leave it out, or send"
                ):
                    decode(bytearray(msgspec.json.encode({**document, name: other})), kind)


def test_what_is_refused_is_what_msgspec_refuses() -> None:
    chance = random.Random(8)
    outcomes = set()
    for _ in range(fast.num_examples(5000)):
        content, kind = random_document(Choices(chance.randbytes(chance.randrange(400))))
        try:
            document = msgspec.json.decode(content)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            continue
        outcomes.add(outcome := (_is_decoded(content, kind), _is_accepted(document, kind)))
        assert outcome[0] == outcome[1], content
    assert outcomes == {(True, True), (False, False)}


def _is_decoded(content: bytes, kind: type[Body]) -> bool:
    try:
        msgspec.json.decode(content, type=kind)
    except msgspec.ValidationError:
        return False
    return True


def _is_accepted(document: object, kind: type[Body]) -> bool:
    try:
        check_document(document, kind)
    except CodedError:
        return False
    return True
