"""Guides by every field and API, and a tiny model's answers that follow them."""

import json
import re
from typing import Any

import jsonschema
import msgspec
import pytest

from engine.machine.python import engine_python
from errors.coded_error import CodedError
from runner.api.openai.bodies import CompletionBody
from runner.api.openai.guides import guide_of
from runner.api.validation import decode
from runner.engines.protocol.messages import Guide
from tests.runner.api.apis import API
from tests.runner.servers import CogUnderTest

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ASKED = [{"role": "user", "content": "Earth"}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 6},
        "people": {"type": "integer", "minimum": 0, "maximum": 999},
    },
    "required": ["city", "people"],
    "additionalProperties": False,
}
SCHEMA_GUIDE = Guide("json_schema", msgspec.json.encode(SCHEMA).decode())
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": SCHEMA}}
GRAMMAR = 'root ::= "(" [0-9]{1,3} ")"'
CHOICE = ["yes", 'a "quoted" one', "na\\ïve\n"]
CHOICE_GUIDE = Guide("ebnf_grammar", r'root ::= "yes" | "a \"quoted\" one" | "na\\ïve\n"')
SHARED: list[tuple[str, Any, Guide]] = [
    ("json", SCHEMA, SCHEMA_GUIDE),
    ("json", SCHEMA_GUIDE.text, SCHEMA_GUIDE),
    ("regex", "a+", Guide("regex", "a+")),
    ("choice", CHOICE, CHOICE_GUIDE),
    ("grammar", GRAMMAR, Guide("ebnf_grammar", GRAMMAR)),
]


def guide(**fields: object) -> Guide | None:
    body = decode(bytearray(msgspec.json.encode({"prompt": "Earth", **fields})), CompletionBody)
    return guide_of(body, "vllm")


def test_a_guide_is_taken_from_any_of_its_fields() -> None:
    any_object = Guide("json_schema", '{"type": "object"}')
    assert guide() is guide(response_format={"type": "text"}) is None
    assert guide(response_format=FORMAT) == SCHEMA_GUIDE
    assert guide(response_format={"type": "json_object"}) == any_object
    assert guide(structured_outputs={"json_object": True}) == any_object
    for name, value, expected in SHARED:
        assert guide(**{f"guided_{name}": value}) == guide(structured_outputs={name: value}) == expected


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs.choice"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex"),
        ({"guided_choice": []}, "guided_choice"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
    ],
)
def test_a_wrong_field_is_refused_by_name(fields: dict[str, Any], name: str) -> None:
    with pytest.raises(CodedError) as refused:
        guide(**fields)
    assert (refused.value.code, refused.value.facts["name"]) == ("E1005", name)


def is_city(text: str) -> bool:
    jsonschema.validate(json.loads(text), SCHEMA)
    return True


def is_whole(text: str) -> bool:
    """Tell whether the answer is JSON, and then a city; else the length cut it."""
    try:
        json.loads(text)
    except ValueError:
        return False
    return is_city(text)


def answers(tiny: API, **body: Any) -> list[tuple[str, str]]:
    """Texts of several seeds, with their reasons."""
    fields = {"prompt": "Earth", "max_tokens": 120, "n": 8, "seed": 1, **body}
    return [(each["text"], each["finish_reason"]) for each in tiny.ask(TEXT, **fields)["choices"]]


@pytest.mark.servers
def test_a_schema_is_followed_whole_and_streamed(tiny: API) -> None:
    texts = answers(tiny, response_format=FORMAT)
    assert [is_city(text) for text, reason in texts if reason == "stop"]
    body = {"messages": ASKED, "max_tokens": 120, "response_format": FORMAT, "seed": 3, "n": 4}
    messages = [each["message"]["content"] for each in tiny.ask(CHAT, **body)["choices"]]
    assert any(map(is_whole, messages))
    streamed = [""] * 4
    for event in tiny.events(CHAT, **body):
        for choice in event["choices"]:
            streamed[choice["index"]] += choice["delta"].get("content", "")
    assert streamed == messages


@pytest.mark.servers
@pytest.mark.parametrize(
    ("guide", "pattern"),
    [
        ({"guided_regex": "[a-c]{2}-[0-9]{3}"}, "[a-c]{2}-[0-9]{3}"),
        ({"guided_choice": CHOICE}, "|".join(map(re.escape, CHOICE))),
        ({"structured_outputs": {"grammar": GRAMMAR}}, r"\(\d{1,3}\)"),
        ({"guided_regex": "a{3}b{3}", "stop": "b"}, "aaa"),
        ({"guided_regex": "[a-z]{1,100}", "min_tokens": 20}, "[a-z]{20,}"),
    ],
)
def test_the_other_guides_are_followed_also_beside_stop_and_min_tokens(
    tiny: API, guide: dict[str, Any], pattern: str
) -> None:
    for text, reason in answers(tiny, n=4, **guide):
        assert reason == "stop"
        assert re.fullmatch(pattern, text)


@pytest.mark.servers
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("guide", "param"),
    [
        ({"guided_regex": "a("}, "guided_regex"),
        ({"guided_grammar": "root ::= x"}, "guided_grammar"),
        ({"structured_outputs": {"json": {"type": "x"}}}, "structured_outputs.json"),
        (
            {"response_format": {**FORMAT, "json_schema": {"name": "x", "schema": {"not": {}}}}},
            "response_format",
        ),
    ],
)
def test_a_guide_that_can_not_be_followed_is_refused_by_its_field(
    tiny: API, stream: bool, guide: dict[str, Any], param: str
) -> None:
    error = tiny.refused(TEXT, 400, prompt="Earth", stream=stream, **guide)
    assert (error["code"], error["param"]) == ("E1105", param)


@pytest.mark.servers
def test_an_engine_that_follows_none_refuses_by_the_field(api: API) -> None:
    error = api.refused(CHAT, 400, messages=ASKED, response_format=FORMAT)
    assert (error["code"], error["param"]) == ("E1104", "response_format")
    assert "paced" in error["message"]


@pytest.mark.servers
def test_tritons_models_take_nvidias_tensors(tiny: API) -> None:
    ids = tiny.ask("/tokenize", prompt="Earth")["tokens"]
    regex = {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "xq[0-9]z"}
    output = tiny.triton.generate_ids(ids, 20, **regex).json()
    assert output["finish_reason"] == "end"
    text = tiny.ask("/detokenize", tokens=output["output_ids"])["prompt"]
    assert re.match("xq[0-9]z", text)


@pytest.mark.servers
def test_cogs_predictions_take_a_schema_or_an_expression(
    tiny: API, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cog = CogUnderTest(tiny.model, tmp_path_factory.mktemp("cog"), COG_TRITON_ENGINE_PYTHON=engine_python({}))
    try:
        given = {"prompt": "Earth", "max_tokens": 150}
        schema = json.dumps(SCHEMA)
        answers = [cog.predict(**given, seed=seed, json_schema=schema) for seed in range(5)]
        ended = [each["output"] for each in answers if each["metrics"]["finish_reason"] == "end"]
        assert [is_city("".join(output)) for output in ended]
        assert "".join(cog.predict(**given, regex="ab{3}c")["output"]) == "abbbc"
        wrong = cog.predict(**given, regex="a(")
        assert wrong["status"] == "failed"
        assert "E1105 InvalidGuide: The regex can't guide the output: at character 2" in wrong["error"]
        both = cog.predict(**given, regex="a", json_schema="{}")
        assert "E1005" in both["error"]
    finally:
        cog.close()
