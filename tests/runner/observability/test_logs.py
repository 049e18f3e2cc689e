"""With LOG_FORMAT=json a line of a runner is a flat JSON object; it names its request and tells no text."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from runner.cog_server.json_logs import flat
from runner.engines.paced.faults import FAULT_SEEDS
from runner.observability.logs import as_json
from tests.runner.paced_engine import TOKENS_PER_SECOND, make_paced_model
from tests.runner.servers import CogUnderTest, engine_pids, wait_until

PROMPT = "Nobody may read this.\nNor this second line."


@pytest.fixture(scope="module")
def logged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CogUnderTest]:
    folder = tmp_path_factory.mktemp("logged")
    model = make_paced_model(folder / "model", TOKENS_PER_SECOND)
    server = CogUnderTest(model, folder, LOG_FORMAT="json", COG_TRITON_FAULTS="requests")
    yield server
    server.close()
    assert lines(server)  # To the last, each is JSON.


def lines(cog: CogUnderTest) -> list[dict[str, Any]]:
    return [json.loads(line) for line in cog.log().splitlines()]


def of_request(cog: CogUnderTest, request_id: str) -> list[dict[str, Any]]:
    return [
        line
        for line in lines(cog)
        if line.get("request_id") == request_id or request_id in line.get("request_ids", ())
    ]


def put(cog: CogUnderTest, request_id: str, **inputs: object) -> dict[str, Any]:
    document: dict[str, Any] = cog.client.put(f"/predictions/{request_id}", json={"input": inputs}).json()
    return document


def ended(cog: CogUnderTest, request_id: str) -> dict[str, Any]:
    """Return the line that tells how the request ended."""

    def found() -> dict[str, Any] | None:
        loggers = {line["logger"]: line for line in of_request(cog, request_id)}
        return loggers.get("cog_triton.request")

    return wait_until(found)  # type: ignore[return-value]


@pytest.mark.servers
def test_a_request_can_be_followed_by_its_id(logged: CogUnderTest) -> None:
    assert put(logged, "mine", prompt=PROMPT, max_tokens=5)["status"] == "succeeded"
    told = ended(logged, "mine")
    assert (told["outcome"], told["finish_reason"], told["output_tokens"]) == ("succeeded", "length", 5)
    assert told["duration_s"] >= told["time_to_first_token_s"] > 0
    assert {line["logger"] for line in of_request(logged, "mine")} >= {
        "coglet::prediction",
        "cog_triton.request",
    }


@pytest.mark.servers
def test_every_line_has_its_time_level_and_source_and_tritons_are_taken_apart(logged: CogUnderTest) -> None:
    found = lines(logged)
    assert all({"timestamp", "level", "logger", "message"} <= set(line) for line in found)
    assert all(
        isinstance(value, (str, int, float, bool, list)) for line in found for value in line.values() if value
    )
    triton = [
        line for line in found if line["logger"] == "triton" and "Started HTTPService" in line["message"]
    ]
    assert triton[0]["level"] == "info"
    assert triton[0]["source"].startswith("http_server.cc:")
    assert [
        line for line in found if line["logger"] == "cog_triton.engine" and "engine ready" in line["message"]
    ]


@pytest.mark.servers
def test_no_line_tells_a_prompt_or_an_output_but_who_asked_gets_the_prompt(logged: CogUnderTest) -> None:
    done = put(logged, "secret", prompt=PROMPT, max_tokens=50)
    assert f"Formatted prompt: {PROMPT}" in done["logs"]
    ended(logged, "secret")
    log = logged.log()
    assert "Nobody may" not in log
    assert "second line" not in log
    assert "".join(done["output"])[:20] not in log


@pytest.mark.servers
def test_a_failure_has_its_code(logged: CogUnderTest) -> None:
    assert put(logged, "long", prompt=PROMPT * 1000)["status"] == "failed"
    told = ended(logged, "long")
    assert (told["level"], told["outcome"], told["code"]) == ("error", "failed", "E1002")


@pytest.mark.servers
def test_a_request_that_the_engine_fails_is_named_in_the_engine_servers_log(logged: CogUnderTest) -> None:
    (seed,) = [seed for seed, fault in FAULT_SEEDS.items() if fault == "fail"]
    assert put(logged, "failing", prompt="hi", max_tokens=50, seed=seed)["status"] == "failed"
    assert ended(logged, "failing")["code"] == "E2109"
    (line,) = wait_until(
        lambda: [line for line in of_request(logged, "failing") if line["logger"] == "cog_triton.engine"]
    )
    assert line["request_ids"] == ["failing"]
    assert len(line["engine_request_ids"]) == 1


@pytest.mark.servers
def test_a_request_that_is_lost_with_a_killed_engine_has_its_line(logged: CogUnderTest) -> None:
    headers = {"Prefer": "respond-async"}
    body = {"input": {"prompt": "hi", "max_tokens": 1000}}
    before = logged.counters["slot_tokens_total"]
    assert logged.client.put("/predictions/lost", json=body, headers=headers).status_code == 202
    # Without a token it would be sent again, and nobody would notice.
    wait_until(lambda: logged.counters["slot_tokens_total"] > before + 20)
    for pid in engine_pids(logged.triton_http_port):
        os.kill(pid, signal.SIGKILL)
    assert ended(logged, "lost")["code"] == "E2107"
    wait_until(lambda: [line for line in lines(logged) if "engine server is ready again" in line["message"]])


def test_lines_that_are_not_as_expected_are_kept_as_text() -> None:
    assert json.loads(flat("panicked at 'x'") or "")["message"] == "panicked at 'x'"
    assert json.loads(as_json("triton: | model | 1 |"))["message"] == "| model | 1 |"
    assert json.loads(as_json("engine_server: a library's line"))["logger"] == "engine_server"
    assert json.loads(as_json("engine: paced at /engine"))["logger"] == "cog_triton.runner"
    assert json.loads(as_json("warning: old tar"))["level"] == "warning"
    assert json.loads(as_json("E2106 StartFailed: it did not"))["code"] == "E2106"
