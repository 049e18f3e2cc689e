"""/v1/embeddings in front of the vLLM adapter, whose stand-in embeds as [first token, last token, mean]."""

import base64
import json
import socket
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from tests.hostile import request
from tests.runner.api.alone import APIAlone
from tests.runner.api.apis import API, error_of
from tests.runner.api.embedder import MAX_TOKENS, environment, make_embedding_model
from tests.runner.paced_engine import make_tokenizer
from tests.runner.servers import HOST, Counters, wait_until

pytestmark = pytest.mark.servers

PATH = "/v1/embeddings"
NEVER_EMBEDDED = 669
FAILS_ALONE = 667
JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[APIAlone]:
    folder = tmp_path_factory.mktemp("embeddings")
    server = APIAlone(make_embedding_model(folder), folder, **environment(folder))
    yield server
    server.close()


def embed(server: APIAlone, given: object, **fields: Any) -> dict[str, Any]:
    return server.ask(PATH, input=given, **fields)


def expected(ids: list[int], size: int = 3) -> np.ndarray:
    vector = np.array([ids[0], ids[-1], np.mean(ids)])[:size]
    return vector / np.linalg.norm(vector)


def vectors(answer: dict[str, Any]) -> list[Any]:
    assert answer["object"] == "list"
    assert [each["index"] for each in answer["data"]] == [*range(len(answer["data"]))]
    return [each["embedding"] for each in answer["data"]]


def test_texts_and_token_ids_one_and_many(server: APIAlone) -> None:
    text = "Water + Fire = Steam"
    ids = make_tokenizer().encode(text).ids
    for given in (text, [text], ids, [ids]):
        answer = embed(server, given, model="small", user="somebody")
        np.testing.assert_allclose(vectors(answer), [expected(ids)], rtol=1e-6)
        assert answer["model"] == "small"
        assert answer["usage"] == {"prompt_tokens": len(ids), "total_tokens": len(ids)}
        assert answer["data"][0]["object"] == "embedding"


def test_many_inputs_keep_their_order(server: APIAlone) -> None:
    inputs = [[1 + number % 300, number % 400] for number in range(2048)]
    answer = embed(server, inputs)
    np.testing.assert_allclose(vectors(answer), [expected(ids) for ids in inputs], rtol=1e-6)
    assert answer["usage"]["prompt_tokens"] == 2 * len(inputs)


def test_base64_has_the_same_numbers(server: APIAlone) -> None:
    inputs = ["Once upon a time", "a"]
    encoded = [base64.b64decode(each) for each in vectors(embed(server, inputs, encoding_format="base64"))]
    found = [np.frombuffer(each, "<f4") for each in encoded]
    np.testing.assert_array_equal(np.array(found), np.array(vectors(embed(server, inputs)), np.float32))


def test_an_embedding_is_cut_where_the_model_allows_it(server: APIAlone) -> None:
    (cut,) = vectors(embed(server, [3, 4], dimensions=2))
    np.testing.assert_allclose(cut, expected([3, 4], 2), rtol=1e-6)
    assert vectors(embed(server, [3, 4], dimensions=3)) == vectors(embed(server, [3, 4]))
    error = server.refused(PATH, 400, input=[3, 4], dimensions=1)
    assert (error["code"], error["param"]) == ("E1005", "dimensions")
    assert "one of 2, 3" in error["message"]


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({}, "E1005", "input"),
        ({"input": []}, "E1005", "input"),
        ({"input": ["a", [1]]}, "E1005", "input"),
        ({"input": ["a"] * 2049}, "E1005", "input"),
        ({"input": [[1], []]}, "E1005", "input"),
        ({"input": [5000]}, "E1103", "input"),
        ({"input": [7] * (MAX_TOKENS + 1)}, "E1002", "input"),
        ({"input": "a" * 70_000}, "E1002", "input"),
        ({"input": "a", "encoding_format": "int8"}, "E1005", "encoding_format"),
        ({"input": "a", "stream": True}, "E1601", "stream"),
        ({"input": [[7], [FAILS_ALONE]]}, "E2204", None),
        ({"input": ["é" * 1900] * 600}, "E1005", "input"),
    ],
)
def test_what_can_not_be_embedded_is_told(
    server: APIAlone, fields: dict[str, Any], code: str, param: str | None
) -> None:
    response = server.client.post(PATH, json=fields)
    assert response.status_code == (500 if code == "E2204" else 400)
    error = error_of(response)
    assert (error["code"], error["param"]) == (code, param)
    assert len(vectors(embed(server, "a"))) == 1


def test_large_calls_give_the_same_as_small_ones(server: APIAlone) -> None:
    """Above 64 KiB all inputs are tokenized before the first is sent."""
    texts = [f"{number} Earth + Water = Plant, Water + Fire = Steam" for number in range(1000, 1040)]
    small = vectors(embed(server, texts))
    assert vectors(embed(server, texts * 50)) == small * 50


def test_the_longest_input_is_embedded(server: APIAlone) -> None:
    np.testing.assert_allclose(vectors(embed(server, [7] * MAX_TOKENS)), [expected([7])], rtol=1e-6)


def test_the_model_generates_no_text(server: APIAlone) -> None:
    messages = [{"role": "user", "content": "a"}]
    for path, fields in {
        "/v1/completions": {"prompt": "a"},
        "/v1/chat/completions": {"messages": messages},
        "/v1/responses": {"input": "a"},
        "/v1/messages": {"messages": messages, "max_tokens": 3},
    }.items():
        response = server.client.post(path, json=fields)
        assert response.status_code == 400
        assert "E1011" in response.text
        assert PATH in response.text
    paths = server.client.get("/openapi.json").json()["paths"]
    assert [path for path in paths if path.startswith("/v1/") and "post" in paths[path]] == [PATH]


def test_calls_are_counted_and_a_client_that_disconnects_frees_the_engine(server: APIAlone) -> None:
    outcomes = {
        name: f'requests_total{{api="openai",code="",outcome="{name}"}}'
        for name in ("succeeded", "cancelled")
    }
    counters = Counters(server.port)
    before = {name: counters[metric] for name, metric in outcomes.items()}
    embed(server, ["a", "b"])
    wait_until(lambda: counters[outcomes["succeeded"]] == before["succeeded"] + 2)
    inputs = [[number, NEVER_EMBEDDED] for number in range(100)]
    with socket.create_connection((HOST, server.port)) as connection:
        connection.sendall(request(PATH, json.dumps({"input": inputs}).encode()))
        wait_until(lambda: counters.running == 64)
    wait_until(lambda: counters.running == 0)
    wait_until(lambda: counters[outcomes["cancelled"]] == before["cancelled"] + 64)
    counters.close()


def test_a_model_that_generates_makes_no_embeddings(api: API) -> None:
    error = api.refused(PATH, 400, input="a")
    assert error["code"] == "E1011"
    assert "serve an embedding model" in error["message"]
    assert PATH not in api.client.get("/openapi.json").json()["paths"]
