"""Values that models write as text have the types that the tool's schema tells."""

import json
from typing import Any

import pytest

from runner.chat.families.syntax.element_calls import MARK
from runner.chat.families.syntax.literals import json_of
from runner.chat.families.tools import Tool, ToolUse
from tests.runner.chat.families.test_forms import read_text

OPTIONAL = {"anyOf": [{"type": "string"}, {"type": "null"}]}
ROOT = {
    "$defs": {
        "Zip": {"type": "string"},
        "Point": {"type": "object"},
        "Same": {"$ref": "#/$defs/Same"},
        "a/b": [{"type": "integer"}],
    }
}


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        (OPTIONAL, {"75001": "75001", "true": "true", "null": None, "None": None, '"a"': '"a"', "{}": "{}"}),
        ({"oneOf": [{"type": "integer"}, {"type": "string"}]}, {"42": 42, "4.5": "4.5", "x": "x"}),
        ({"type": ["boolean", "string"]}, {"True": True, "1": "1", "TRUE": "TRUE"}),
        ({"allOf": [{"$ref": "#/$defs/Zip"}, {"description": "x"}]}, {"75001": "75001"}),
        ({"$ref": "#/$defs/Zip"}, {"75001": "75001"}),
        ({"$ref": "#/$defs/a~1b/0"}, {"5": 5}),
        ({"$ref": "#/$defs/Same"}, {"5": 5}),
        ({"$ref": "#/$defs/None"}, {"5": 5, "x": "x"}),
        (
            {"anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}]},
            {"{'x': True}": {"x": True}, "null": None},
        ),
        ({"enum": ["1", 2, True, None]}, {"1": "1", "2": 2, "true": True, "None": None, "3": "3"}),
        ({"const": "5"}, {"5": "5"}),
        ({"type": "string", "enum": ["1"]}, {"1": "1"}),
        ({"type": "str"}, {"75001": "75001"}),
        ({"type": "integer"}, {"5": 5, "5.5": 5.5, "01": "01", "abc": "abc", "NULL": None}),
        ({"type": "number"}, {"1e999": "1e999", "NaN": "NaN", "-1.5": -1.5}),
        ({"type": "boolean"}, {"True": True, "FALSE": False, "0": False, "yes": "yes"}),
        (
            {"type": "object"},
            {
                "{'a': [1, None, true,], 'b': 'it\\'s'}": {"a": [1, None, True], "b": "it's"},
                '{"a": "b\nc"}': {"a": "b\nc"},
                '"{\\"a\\": 1}"': {"a": 1},
                "{a}": "{a}",
            },
        ),
        ({"type": "array"}, {"('a', 1)": ["a", 1], "[1, 2,]": [1, 2]}),
        ({}, {"5": 5, '"a"': "a", "x y": "x y", "{'a': 1}": {"a": 1}}),
        (True, {"5": 5}),
        ({"type": "integer", "nullable": True}, {"null": None}),
        ({"type": []}, {"5": 5}),
    ],
)
def test_a_text_means_the_value_that_its_schema_allows(schema: Any, values: dict[str, Any]) -> None:
    for text, value in values.items():
        read = json.loads(json_of(text, schema, ROOT))
        assert (read, type(read)) == (value, type(value)), text


WRITTEN = {
    "qwen3-coder": "<tool_call>\n<function=f>\n<parameter={key}>\n{value}\n"
    "</parameter>\n</function>\n</tool_call>",
    "glm": "<tool_call>f\n<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>",
    "deepseek-v4": '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="{key}">{value}'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>",
}


def read(name: str, schema: dict[str, Any], value: str, *, is_strict: bool = False, key: str = "x") -> Any:
    tools = ToolUse((Tool("f", parameters={"properties": {"x": schema}, **ROOT}, is_strict=is_strict),))
    (call,) = read_text(name, WRITTEN[name].format(key=key, value=value), tools=tools).calls
    return json.loads(call.arguments)


@pytest.mark.parametrize("name", WRITTEN)
def test_families_that_write_values_as_text_follow_the_schema(name: str) -> None:
    for schema in (OPTIONAL, {"$ref": "#/$defs/Zip"}, {"type": ["null", "string"]}):
        for value in ("75001", "true", "x\ny"):
            assert read(name, schema, value) == {"x": value}
    assert read(name, {"$ref": "#/$defs/Point"}, "{'a': None}") == {"x": {"a": None}}
    assert read(name, {}, "5", key="unknown") == {"unknown": "5"}
    assert read(name, OPTIONAL, '"a"', is_strict=True) == {"x": "a"}  # As the guide makes models write it.


@pytest.mark.parametrize(
    ("schema", "elements", "value"),
    [
        (
            {"anyOf": [{"type": "array", "items": {"type": "integer"}}, {"type": "string"}]},
            "<item>1</item><item>2</item>",
            [1, 2],
        ),
        ({"$ref": "#/$defs/Named"}, "<item>01</item>", {"item": "01"}),
        ({"anyOf": [{"$ref": "#/$defs/Tree"}]}, "<next><size>5</size></next>", {"next": {"size": 5}}),
        ({}, "<a>1</a><a>2</a>", {"a": ["1", "2"]}),
    ],
)
def test_elements_in_elements_follow_the_schema(schema: Any, elements: str, value: Any) -> None:
    tree = {"properties": {"size": {"type": "integer"}, "next": {"$ref": "#/$defs/Tree"}}}
    named = {"type": "object", "properties": {"item": {"type": "string"}}}
    parameters = {"properties": {"x": schema}, "$defs": {"Tree": tree, "Named": named}}
    text = f'<tool_call>\n<invoke name="f"><x>{elements}</x></invoke>\n</tool_call>'.replace("<", f"{MARK}<")
    (call,) = read_text("minimax-m3", text, tools=ToolUse((Tool("f", parameters=parameters),))).calls
    assert json.loads(call.arguments) == {"x": value}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_parameter_that_has_all_arguments_is_unwrapped(name: str) -> None:
    assert read(name, {}, '{"x": 5}', key="arguments") == {"x": 5}
    assert read(name, {}, '{"y": 5}', key="arguments") == {"arguments": '{"y": 5}'}


@pytest.mark.parametrize(
    ("attribute", "schema", "value", "meant"),
    [
        ("true", {"type": "integer"}, "5", 5),
        ("true", OPTIONAL, "null", "null"),
        ("true", {}, "5", "5"),
        ("false", {"type": "string"}, "75001", "75001"),
        ("false", {"type": "string"}, '"a"', "a"),
        ("false", OPTIONAL, "null", None),
        ("false", {}, "5", 5),
    ],
)
def test_the_schema_tells_more_than_the_model(attribute: str, schema: Any, value: str, meant: Any) -> None:
    assert read("deepseek-v4", schema, value, key=f'x" string="{attribute}') == {"x": meant}


def test_a_schema_takes_no_longer_than_its_length() -> None:
    parts = {str(n): {"anyOf": [{"$ref": f"#/{n + 1}"}, {"$ref": f"#/{n + 1}"}] * 99} for n in range(6)}
    root = {**parts, "6": {"type": "string"}, "loop": {"oneOf": [{"$ref": "#/loop"}, {"type": "null"}]}}
    assert json_of("75001", {"$ref": "#/0"}, root) == '"75001"'
    assert json_of("null", {"$ref": "#/loop"}, root) == "null"
