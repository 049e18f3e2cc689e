"""A tiny model's answers follow schemas, expressions, grammars and choices, on every way to it."""

from __future__ import annotations

import json
import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import jsonschema
import pytest

from engine.machine.python import engine_python
from tests.runner.api.apis import API
from tests.runner.servers import ENSEMBLE, SLOT, CogUnderTest

pytestmark = pytest.mark.servers

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
FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": SCHEMA}}
WRONG_FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": {"not": {}}}}
GRAMMAR = 'root ::= "(" [0-9]{1,3} ")"'
GUIDES = [
    ({"guided_regex": "[a-c]{2}-[0-9]{3}"}, "[a-c]{2}-[0-9]{3}"),
    ({"guided_choice": ["yes", 'a "quoted" one', "na\\ïve\n"]}, 'yes|a "quoted" one|na\\\\ïve\n'),
    ({"guided_grammar": GRAMMAR}, r"\(\d{1,3}\)"),
    ({"structured_outputs": {"regex": "x{3}"}}, "xxx"),
    ({"structured_outputs": {"choice": ["a", "b"]}}, "[ab]"),
    ({"structured_outputs": {"grammar": GRAMMAR}}, r"\(\d{1,3}\)"),
]


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


def whole(given: list[tuple[str, str]]) -> list[str]:
    assert {reason for _, reason in given} <= {"stop", "length"}
    texts = [text for text, reason in given if reason == "stop"]
    assert texts
    return texts


@pytest.mark.parametrize(
    "guide", [{"response_format": FORMAT}, {"guided_json": SCHEMA}, {"guided_json": json.dumps(SCHEMA)},
              {"structured_outputs": {"json": SCHEMA}}]
)  # fmt: skip
def test_a_schema_is_followed(tiny: API, guide: dict[str, Any]) -> None:
    assert all(map(is_city, whole(answers(tiny, **guide))))


def test_a_chats_answer_follows_its_schema_whole_and_streamed(tiny: API) -> None:
    body = {"messages": ASKED, "max_tokens": 120, "response_format": FORMAT, "seed": 3, "n": 4}
    messages = [each["message"]["content"] for each in tiny.ask(CHAT, **body)["choices"]]
    assert any(map(is_whole, messages))
    streamed = [""] * 4
    for event in tiny.events(CHAT, **body):
        for choice in event["choices"]:
            streamed[choice["index"]] += choice["delta"].get("content", "")
    assert streamed == messages


@pytest.mark.parametrize(
    "guide", [{"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}]
)
def test_json_object_is_any_object(tiny: API, guide: dict[str, Any]) -> None:
    given = answers(tiny, n=16, max_tokens=300, **guide)
    assert all(text.lstrip().startswith("{") for text, _ in given)
    assert all(isinstance(json.loads(text), dict) for text, reason in given if reason == "stop")


def test_text_is_no_guide(tiny: API) -> None:
    assert answers(tiny, response_format={"type": "text"}, n=1) == answers(tiny, n=1)


@pytest.mark.parametrize(("guide", "pattern"), GUIDES)
def test_the_other_guides_are_followed(tiny: API, guide: dict[str, Any], pattern: str) -> None:
    assert all(re.fullmatch(pattern, text) for text in whole(answers(tiny, **guide)))


def test_stop_sequences_and_min_tokens_work_beside_a_guide(tiny: API) -> None:
    assert answers(tiny, guided_regex="a{3}b{3}", stop="b", n=1) == [("aaa", "stop")]
    (text, _), *_ = answers(tiny, guided_regex="[a-z]{1,100}", min_tokens=20, n=1)
    assert len(text) >= 20


def test_a_seed_gives_the_same_guided_answer_among_others(tiny: API) -> None:
    alone = answers(tiny, response_format=FORMAT, n=2)
    with ThreadPoolExecutor(8) as pool:
        others = [pool.submit(answers, tiny, seed=seed, n=2) for seed in range(4)]
        again = [pool.submit(answers, tiny, response_format=FORMAT, n=2) for _ in range(4)]
        assert [each.result() for each in again] == [alone] * 4
        free = [each.result() for each in others]
    assert free == [answers(tiny, seed=seed, n=2) for seed in range(4)]


@pytest.mark.parametrize(
    ("guide", "param", "code"),
    [
        ({"guided_regex": "a("}, "guided_regex", "E1105"),
        ({"guided_grammar": "root ::= x"}, "guided_grammar", "E1105"),
        ({"guided_json": "{"}, "guided_json", "E1105"),
        ({"structured_outputs": {"json": {"type": "x"}}}, "structured_outputs.json", "E1105"),
        ({"structured_outputs": {"regex": "a", "choice": ["a"]}}, "structured_outputs", "E1005"),
        ({"guided_regex": "a", "response_format": {"type": "json_object"}}, "guided_regex", "E1005"),
        ({"guided_choice": []}, "guided_choice", "E1005"),
        ({"response_format": {"type": "xml"}}, "response_format", "E1005"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "E1005"),
        ({"response_format": WRONG_FORMAT}, "response_format", "E1105"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_a_wrong_guide_is_refused_by_its_field(
    tiny: API, stream: bool, guide: dict[str, Any], param: str, code: str
) -> None:
    error = tiny.refused(TEXT, 400, prompt="Earth", stream=stream, **guide)
    assert (error["code"], error["param"]) == (code, param)


@pytest.mark.parametrize(
    "guide", [{"response_format": FORMAT}, {"guided_regex": "a"}, {"guided_choice": ["a"]}]
)
def test_an_engine_that_follows_none_refuses_by_the_field(api: API, guide: dict[str, Any]) -> None:
    error = api.refused(CHAT, 400, messages=ASKED, **guide)
    assert (error["code"], error["param"]) == ("E1104", next(iter(guide)))
    assert "paced" in error["message"]


def test_tritons_models_take_nvidias_tensors(tiny: API) -> None:
    triton = tiny.triton
    tensors = {"guided_decoding_guide_type": "json_schema", "guided_decoding_guide": json.dumps(SCHEMA)}
    body = {"text_input": "Earth", "max_tokens": 150, "top_p": 0.9, **tensors}
    texts = [
        triton.post(f"{ENSEMBLE}/generate", {**body, "random_seed": seed}).json()["text_output"]
        for seed in range(6)
    ]
    assert any(map(is_whole, texts))
    assert all(text.lstrip().startswith("{") for text in texts)
    ids = tiny.ask("/tokenize", prompt="Earth")["tokens"]
    regex = {"guided_decoding_guide_type": "regex", "guided_decoding_guide": "xq[0-9]z"}
    output = triton.generate_ids(ids, 20, **regex).json()
    assert output["finish_reason"] == "end"
    text = tiny.ask("/detokenize", tokens=output["output_ids"])["prompt"]
    assert re.match("xq[0-9]z", text)


@pytest.mark.parametrize(
    ("tensors", "message"),
    [
        ({"guided_decoding_guide_type": "yaml"}, "E1103 .*one of json, json_schema, regex, ebnf_grammar"),
        ({"guided_decoding_guide": "a"}, "E1103 .*guided_decoding_guide_type must be one of"),
        ({"guided_decoding_guide_type": "regex"}, "E1103 .*_guide must be the text of the regex"),
        ({"guided_decoding_guide_type": "json", "guided_decoding_guide": "x"}, "E1103 .*left out"),
        ({"guided_decoding_guide_type": "regex", "guided_decoding_guide": "a("}, "E1105 .*at character 2"),
    ],
)
def test_wrong_tensors_are_refused_with_a_code(tiny: API, tensors: dict[str, str], message: str) -> None:
    body = {"text_input": "Earth", "max_tokens": 5, **tensors}
    response = tiny.triton.post(f"{ENSEMBLE}/generate", body)
    assert response.status_code >= 400
    assert re.search(message, response.text)


def test_the_paced_engine_refuses_the_tensors(api: API) -> None:
    response: httpx.Response = api.triton.post(
        f"{SLOT}/generate",
        {"input_ids": [5], "input_lengths": 1, "request_output_len": 2, "guided_decoding_guide_type": "json"},
    )
    assert (
        "E1104 UnsupportedArgument: guided_decoding_guide_type='json' is not supported by the paced"
        in response.text
    )


def test_cogs_predictions_take_a_schema_or_an_expression(
    tiny: API, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cog = CogUnderTest(tiny.model, tmp_path_factory.mktemp("cog"), COG_TRITON_ENGINE_PYTHON=engine_python({}))
    try:
        given = {"prompt": "Earth", "max_tokens": 150, "seed": 5}
        ended = []
        for seed in range(5):
            answer = cog.predict(**{**given, "seed": seed, "json_schema": json.dumps(SCHEMA)})
            if answer["metrics"]["finish_reason"] == "end":
                ended.append("".join(answer["output"]))
        assert ended
        assert all(map(is_city, ended))
        assert "".join(cog.predict(**given, regex="ab{3}c")["output"]) == "abbbc"
        wrong = cog.predict(**given, regex="a(")
        assert wrong["status"] == "failed"
        assert "E1105 InvalidGuide: The regex can't guide the output: at character 2" in wrong["error"]
        both = cog.predict(**given, regex="a", json_schema="{}")
        assert "E1005" in both["error"]
    finally:
        cog.close()
