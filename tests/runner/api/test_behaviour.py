"""Clients that leave, engines that fail, limits and keys: what is held is freed, all are told the truth."""

import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from errors.settings import PortInUse
from tests.runner.api.apis import API, data_of, error_of
from tests.runner.paced_engine import PacedModel, make_paced_model
from tests.runner.servers import DEADLINE_S, HOST, TritonUnderTest, wait_until

pytestmark = pytest.mark.servers

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
KEY = {"Authorization": "Bearer second key"}
ASKED = [{"role": "user", "content": "Earth"}]


@pytest.fixture(scope="module")
def strict(tmp_path_factory: pytest.TempPathFactory) -> Iterator[API]:
    """With keys, an origin, and little of everything. Its tests may kill its processes."""
    folder = tmp_path_factory.mktemp("strict")
    api = API(
        make_paced_model(folder / "model", 50),
        folder,
        API_KEYS="first key, second key",
        OPENAI_CORS_ORIGINS="https://page.example",
        OPENAI_MAX_BODY_BYTES="1000",
        OPENAI_MAX_REQUESTS="4",
        OPENAI_TIMEOUT="4",
    )
    api.client.headers.update(KEY)
    yield api
    api.close()


@pytest.mark.parametrize(
    ("path", "body", "num_texts"),
    [
        (CHAT, {"messages": ASKED, "max_tokens": 2000, "n": 3}, 3),
        (TEXT, {"prompt": "Earth", "max_tokens": 2000, "n": 3}, 3),
        ("/v1/responses", {"input": "Earth", "max_output_tokens": 2000}, 1),
        ("/v1/messages", {"messages": ASKED, "max_tokens": 2000}, 1),
    ],
)
def test_a_client_that_leaves_a_stream_frees_its_sequences(
    api: API, path: str, body: dict[str, object], num_texts: int
) -> None:
    before = api.counters.cancelled
    with api.streaming(path, **body) as events:
        next(events)
    api.counters.wait_for_cancelled(before + num_texts)


def test_a_client_that_leaves_before_an_answer_frees_the_sequence(api: API) -> None:
    wait_until(lambda: api.counters.is_settled)
    before, asked = api.counters.cancelled, api.counters["slot_requests_total"]
    body = b'{"prompt": "Earth", "max_tokens": 4000}'
    with socket.create_connection((HOST, api.port), timeout=DEADLINE_S) as connection:
        head = f"POST {TEXT} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        wait_until(lambda: api.counters["slot_requests_total"] > asked)
    api.counters.wait_for_cancelled(before + 1)


def test_a_client_that_reads_slowly_gets_all(api: API) -> None:
    body = {"prompt": "Earth", "max_tokens": 300, "stream": True}
    transport = httpx.HTTPTransport(socket_options=[(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)])
    with (
        httpx.Client(base_url=api.url, transport=transport, timeout=300) as client,
        client.stream("POST", TEXT, json=body) as response,
    ):
        received = b""
        for part in response.iter_raw(4000):
            received += part
            time.sleep(0.02)
    *documents, last = data_of(received.decode())
    assert last == "[DONE]"
    texts = [json.loads(each)["choices"][0]["text"] for each in documents]
    assert "".join(texts) == api.model.expected_text("Earth", 300)


def test_pages_of_the_named_origin_may_ask(strict: API) -> None:
    asked = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    for origin, allowed in (("https://page.example", True), ("https://other.example", False)):
        response = httpx.options(strict.url + TEXT, headers={"Origin": origin, **asked}, timeout=DEADLINE_S)
        assert (response.headers.get("access-control-allow-origin") == origin) == allowed
        answer = httpx.post(strict.url + TEXT, json={}, headers={"Origin": origin}, timeout=DEADLINE_S)
        assert (answer.headers.get("access-control-allow-origin") == origin) == allowed


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_beyond_the_limit_is_413(strict: API, is_chunked: bool) -> None:
    body = json.dumps({"prompt": "a" * 1000}).encode()
    content = iter([body]) if is_chunked else body
    response = strict.client.post(TEXT, content=content, headers={"Content-Type": "application/json"})
    assert response.status_code == 413
    assert error_of(response)["code"] == "E1606"


def test_more_than_the_limit_is_429_and_places_come_free(strict: API) -> None:
    with strict.streaming(TEXT, prompt="Earth", max_tokens=150, n=3) as events:
        next(events)
        response = strict.post(TEXT, prompt="Earth", n=2, max_tokens=1)
        assert response.status_code == 429
        assert response.headers["retry-after"] == "1"
        assert error_of(response)["code"] == "E1607"
        assert strict.ask(TEXT, prompt="Earth", max_tokens=1)
    wait_until(lambda: strict.post(TEXT, prompt="Earth", n=4, max_tokens=1).status_code == 200)


def test_whose_stream_has_ended_has_its_places_back(strict: API) -> None:
    """A client that always asks for all there is meets nobody but itself."""
    for _ in range(150):
        assert strict.events(TEXT, prompt="Earth", n=4, max_tokens=1)


def test_an_engine_that_dies_ends_streams_as_errors_and_is_back(strict: API) -> None:
    with strict.streaming(TEXT, prompt="Earth", max_tokens=40) as events:
        next(events)
        os.kill(strict.triton.engine_pid(), signal.SIGKILL)
        *_, last = events
    error = json.loads(last)["error"]
    assert (error["code"], error["type"]) == ("E2107", "server_error")
    wait_until(lambda: strict.client.get("/ready").status_code == 200)
    assert strict.ask(TEXT, prompt="Earth", max_tokens=1)
    restarts = "\ncog_triton_engine_restarts_total 1"
    wait_until(lambda: restarts in httpx.get(f"{strict.url}/metrics", headers=KEY, timeout=DEADLINE_S).text)


def test_without_the_engine_it_is_503_with_a_time_to_come_again(paced: PacedModel, tmp_path: Path) -> None:
    """Away for longer than a request waits for it."""
    api = API(paced, tmp_path)
    engine = api.triton.service.stack.engine
    api.triton.run(engine.stop())
    response = api.post(TEXT, prompt="Earth", max_tokens=1)
    assert response.status_code == 503
    assert int(response.headers["retry-after"]) > 0
    assert error_of(response)["code"] == "E2107"
    assert api.client.get("/health").status_code == 200
    assert api.client.get("/ready").status_code == 503
    api.close()


def test_a_port_that_is_taken_is_told_with_its_variable(paced: PacedModel, tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = str(taken.getsockname()[1])
        with pytest.raises(PortInUse, match=rf"Port {port} .* set OPENAI_PORT"):
            TritonUnderTest(paced, tmp_path, OPENAI_PORT=port, OPENAI_HOST=HOST)
