"""However a prediction is given up, its sequence in the engine is freed, by the slot's own count.

How long that took is printed. The first test also tells if a later Cog submits or cancels predictions
in another way than ``runner.cog_server.streaming`` joins.
"""

import json
import socket
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from tests.runner.servers import DEADLINE_S, HOST, CogUnderTest, wait_until

pytestmark = pytest.mark.servers

LONG = {"prompt": "What is machine learning?", "max_tokens": 4000}
KINDS = ["application/json", "text/event-stream"]


def cancel(cog: CogUnderTest, name: str) -> httpx.Response:
    return cog.client.post(f"/predictions/{name}/cancel")


def test_the_cancel_endpoint_frees_the_sequence_and_again_or_elsewhere_it_does_no_harm(
    cog: CogUnderTest,
) -> None:
    cancelled, tokens = cog.counters.cancelled, cog.counters["slot_tokens_total"]
    assert cancel(cog, "never-heard-of").status_code == 404
    with ThreadPoolExecutor(1) as pool:
        prediction = pool.submit(cog.client.put, "/predictions/given-up", json={"input": LONG})
        wait_until(lambda: cog.counters["slot_tokens_total"] > tokens + 10)
        codes = {cancel(cog, "given-up").status_code for _ in range(3)}
        assert 200 in codes
        assert codes <= {200, 404}
        print(f"freed after {cog.counters.wait_for_cancelled(cancelled + 1):.3f} s")
        assert prediction.result(DEADLINE_S).json()["status"] == "canceled"
    assert cancel(cog, "given-up").status_code == 404
    wait_until(lambda: cog.counters.is_settled)
    assert cog.predict(prompt="hi", max_tokens=2)["status"] == "succeeded"


def open_connection(cog: CogUnderTest, kind: str) -> socket.socket:
    connection = socket.create_connection((HOST, cog.port), timeout=300)
    body = json.dumps({"input": LONG}).encode()
    head = f"POST /predictions HTTP/1.1\r\nHost: x\r\nAccept: {kind}\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def test_a_stop_sequence_frees_the_sequence(cog: CogUnderTest) -> None:
    cancelled = cog.counters.cancelled
    prediction = cog.predict(**LONG, stop_sequences="?What")
    print(f"freed after {cog.counters.wait_for_cancelled(cancelled + 1):.3f} s")
    assert "".join(prediction["output"]) == "What is machine learning"
    assert prediction["metrics"]["finish_reason"] == "stop"


def test_clients_that_leave_at_once_leave_all_places_free(cog: CogUnderTest) -> None:
    """More of them, one after the other, than Cog has places for predictions."""
    for _ in range(3):
        wait_until(lambda: cog.counters.is_settled)
        cancelled = cog.counters.cancelled
        connections = [open_connection(cog, KINDS[number % 2]) for number in range(40)]
        wait_until(lambda: cog.counters.running == 40)
        for connection in connections:
            connection.close()
        cog.counters.wait_for_cancelled(cancelled + 40)
    wait_until(lambda: cog.counters.is_settled)
    with ThreadPoolExecutor(64) as pool:
        predictions = list(pool.map(lambda _: cog.predict(prompt="hi", max_tokens=5), range(64)))
    assert {prediction["status"] for prediction in predictions} == {"succeeded"}
