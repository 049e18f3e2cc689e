"""Bodies of any size and shape get a coded answer, at the cost of their bytes alone."""

import asyncio
import json
import random
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from errors.api import InvalidBody
from errors.requests import InvalidInput
from runner.api.error_response import Fields, error_body
from runner.supervision.json_bounds import MAX_DEPTH, JSONBounds
from tests import fast
from tests.fuzz import bodies

CHAT, TEXT, TOKENIZE, DETOKENIZE = "/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"
MIB = 1 << 20
LONG_TEXT = b'"%b"' % (b"a" * 7 * MIB)
PATHS = (CHAT, TEXT, TOKENIZE, DETOKENIZE)


def post(path: str, content: bytes, content_type: str | None = "application/json") -> httpx.Response:
    headers = {} if content_type is None else {"content-type": content_type}

    async def send() -> httpx.Response:
        async with httpx.AsyncClient(transport=bodies.transport(), base_url="http://api") as client:
            return await client.post(path, content=content, headers=headers)

    return asyncio.run(send())


def with_prompt(value: Any) -> bytes:
    return json.dumps({"prompt": value, "max_tokens": 1}).encode()


def with_message(**fields: Any) -> bytes:
    return json.dumps({"messages": [{"role": "user", "content": "hi", **fields}]}).encode()


def beside_prompt(name: bytes, value: bytes) -> Callable[[], bytes]:
    return lambda: b'{"prompt":"a","%b":%b}' % (name, value)


def _object(size: int) -> bytes:
    return json.dumps(dict.fromkeys(map(str, range(size)), 1)).encode()


MANY: dict[str, tuple[str, Callable[[], bytes]]] = {
    "prompts": (TEXT, lambda: with_prompt(["a"] * 1_300_000)),
    "keys": (TEXT, lambda: json.dumps(dict.fromkeys(map(str, range(600_000)), 1)).encode()),
    "commas": (TEXT, lambda: b'{"prompt": [' + b"," * (7 * MIB) + b"]}"),
    "empty messages": (CHAT, lambda: b'{"messages": [' + b"{}," * 2_700_000 + b"{}]}"),
    "token ids to text": (DETOKENIZE, lambda: json.dumps({"tokens": [1] * 2_500_000}).encode()),
    "tools": (TOKENIZE, lambda: b'{"prompt": "a", "tools": [' + b"{}," * 2_500_000 + b"{}]}"),
    "an array": (TEXT, lambda: b"[" * (7 * MIB)),
    "objects": (CHAT, lambda: b'{"a":' * MIB),
    "an array after a text": (TEXT, lambda: b'{"prompt": "' + b'\\"[' * MIB + b'", "a": ' + b"[" * MIB),
}


@pytest.mark.parametrize(("path", "make"), fast.few(MANY.values()), ids=MANY.keys())
def test_too_many_values_are_refused_before_they_are_parsed(path: str, make: Callable[[], bytes]) -> None:
    body = make()
    start_s = time.process_time()
    response = post(path, body)
    assert time.process_time() - start_s < 1  # Tens of milliseconds; up to 25 s without a bound.
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "E1600")
    assert "OPENAI_MAX_BODY_VALUES" in error["message"] or "levels deep" in error["message"]


NEARLY: dict[str, tuple[str, Callable[[], bytes], str, str]] = {
    "a number at the end": (TEXT, lambda: with_prompt([1] * 290_000 + [-1]), "E1005", "prompt[290000] must"),
    "null at the end": (TEXT, lambda: with_prompt(["a"] * 290_000 + [None]), "E1005", "prompt[290000] must"),
    "an empty list": (TEXT, lambda: with_prompt([[1]] * 50_000 + [[]]), "E1005", "prompt[50000] must"),
    "a mixture": (TEXT, lambda: with_prompt([1] * 290_000 + ["a"]), "E1005", "a list of strings only"),
    "prompts": (TEXT, lambda: with_prompt(["a"] * 290_000), "E1005", "at most 1024 prompts"),
    "a field after many ids": (
        TEXT,
        lambda: with_prompt([1] * 290_000)[:-1] + b',"zz":1}',
        "E1601",
        "The field zz",
    ),
    "metadata": (
        TEXT,
        lambda: beside_prompt(b"metadata", _object(70_000))(),
        "E1005",
        "metadata must be an object of",
    ),
    "biases": (
        TEXT,
        lambda: beside_prompt(b"logit_bias", _object(1025))(),
        "E1005",
        "logit_bias must be an object of",
    ),
    "a key of a bias": (
        TEXT,
        beside_prompt(b"logit_bias", b'{"%b":1}' % (b"1" * 5000)),
        "E1005",
        "logit_bias must",
    ),
    "a bias that is no token": (TEXT, beside_prompt(b"logit_bias", b'{"1e400":1}'), "E1005", "logit_b"),
    "a bias beyond numbers": (TEXT, beside_prompt(b"logit_bias", b'{"1":1e400}'), "E1600", "JSON"),
    "a huge number": (TEXT, beside_prompt(b"seed", b"1" * 7 * MIB), "E1600", "more than 100 digits"),
    "no number": (TEXT, beside_prompt(b"temperature", b"NaN"), "E1600", "JSON"),
    "half a character": (TEXT, beside_prompt(b"user", b'"\\ud800"'), "E1600", "JSON"),
    "a role": (CHAT, lambda: with_message(role=5, content="a" * 7 * MIB), "E1005", "messages[0]"),
    "a field's name": (TEXT, beside_prompt(b"a" * 7 * MIB, b"1"), "E1601", "aaa"),
    "a model's name": (TEXT, beside_prompt(b"model", LONG_TEXT), "E1603", "aaa"),
    "a type": (TEXT, beside_prompt(b"response_format", b'{"type":%b}' % LONG_TEXT), "E1005", "aaa"),
}


@pytest.mark.parametrize(("path", "make", "code", "words"), NEARLY.values(), ids=NEARLY.keys())
def test_what_is_within_the_bounds_and_wrong_is_named_at_once(
    path: str, make: Callable[[], bytes], code: str, words: str
) -> None:
    body = make()
    start_s = time.process_time()
    response = post(path, body)
    assert time.process_time() - start_s < 2
    error = response.json()["error"]
    assert error["code"] == code, error
    assert words in error["message"]
    assert len(response.content) < 2000


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "content_type",
    [
        None,
        "",
        "text/plain",
        "application/x-www-form-urlencoded",
        "text/json",
        "application/jsonp",
        "a" * 9000,
    ],
)
def test_a_body_that_is_not_declared_as_json_is_415(path: str, content_type: str | None) -> None:
    response = post(path, b'{"prompt": "a"}', content_type)
    assert (response.status_code, response.json()["error"]["code"]) == (415, "E1608")


@pytest.mark.parametrize(
    "content_type", ["application/json; charset=utf-8", "Application/JSON", "application/x+json"]
)
def test_json_by_any_of_its_names_is_read(content_type: str) -> None:
    assert post(TEXT, b'{"prompt": "a", "max_tokens": 1}', content_type).status_code == 200


def fed(document: bytes, cuts: int, max_values: int = 1 << 30) -> JSONBounds:
    bounds = JSONBounds(max_values, "raise OPENAI_MAX_BODY_VALUES", InvalidBody)
    choice = random.Random(cuts)
    at = sorted(choice.randrange(len(document) + 1) for _ in range(cuts))
    for start, end in zip([0, *at], [*at, len(document)], strict=True):
        bounds.feed(document[start:end])
    return bounds


def test_values_are_counted_outside_strings_however_the_bytes_arrive() -> None:
    texts = ["[[[", '"', "\\", '\\"', '"\\\\"', "a, b: {c}", "\\\\\\", "é[", '\n"[,]']
    document = json.dumps({text: [text, {text: 1}] for text in texts}).encode()
    counted = {fed(document, cuts).num_values for cuts in range(60)}
    assert len(counted) == 1
    with pytest.raises(InvalidBody, match="raise OPENAI_MAX_BODY_VALUES"):
        fed(document, 3, max_values=counted.pop() - 1)


def nested(depth: int) -> bytes:
    return b"[{}," + b"[" * (depth - 1) + b'"]]]"' + b"]" * depth


def of_digits(digits: int, begin: bytes) -> bytes:
    number = begin + b"1" * (digits - sum(map(begin.count, (b"0", b"1"))))
    return b'[1, "%b", %b, {"%b": [2]}]' % (b"7" * 999, number, b"8" * 999)


@pytest.mark.parametrize(
    ("allowed", "refused"),
    [
        (nested(MAX_DEPTH), nested(MAX_DEPTH + 1)),
        *((of_digits(100, begin), of_digits(101, begin)) for begin in (b"", b"-", b"0.", b"1e")),
    ],
)
def test_levels_and_digits_are_counted_outside_strings_however_the_bytes_arrive(
    allowed: bytes, refused: bytes
) -> None:
    for cuts in (0, 1, 300):
        fed(allowed, cuts)
        with pytest.raises(InvalidBody, match=r"more than 100 digits|levels deep"):
            fed(refused, cuts)


def test_an_error_does_not_keep_the_body() -> None:
    """It refers to the request, which refers to the error: a cycle, which stays for long."""
    error = InvalidInput(name="metadata", expected="small", value=["large"] * 1000)
    error.__context__ = ValueError("large")
    assert b"large" in error_body(error, Fields())
    assert "value" not in error.facts
    assert error.__context__ is None
