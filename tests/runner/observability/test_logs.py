"""With LOG_FORMAT=json a line of a runner is a flat JSON object; it names its request and tells no text."""

import json
import os
import signal
from typing import Any

import httpx
import pytest

from runner.cog_server.json_logs import flat
from runner.engines.paced.faults import FAULT_SEEDS
from runner.observability.logs import as_json
from tests.runner.api.apis import data_of
from tests.runner.observability.watched import KEY, PROMPT, Watched
from tests.runner.servers import engine_pids, wait_until

ENGINE = "cog_triton.engine"


@pytest.mark.servers
def test_a_prediction_can_be_followed_by_its_id_and_no_line_tells_a_text(watched: Watched) -> None:
    done = watched.predict("mine", prompt=PROMPT, max_tokens=50)
    line = watched.line_of("mine")
    assert (line["outcome"], line["finish_reason"], line["output_tokens"]) == ("succeeded", "length", 50)
    assert line["duration_s"] >= line["time_to_first_token_s"] > 0
    assert watched.lines_of("mine", "coglet::prediction")
    assert f"Formatted prompt: {PROMPT}" in done["logs"], "who asked gets it"
    for text in ("Nobody may", "second line", "".join(done["output"])[:20]):
        assert text not in watched.cog.log()


@pytest.mark.servers
@pytest.mark.parametrize("stream", [False, True])
def test_each_text_of_a_call_of_the_api_has_a_line_that_tells_none(watched: Watched, stream: bool) -> None:
    body: dict[str, Any] = {"prompt": [PROMPT, "Fire"], "n": 2, "max_tokens": 3, "stream": stream}
    name = f"four-{stream}"
    answer = watched.api.post("/v1/completions", json=body, headers={"X-Request-ID": name})
    assert answer.status_code == 200
    lines = wait_until(lambda: len(found := watched.lines_of(name)) == 4 and found)
    for line in lines:
        told = line["api"], line["outcome"], line["finish_reason"], line["output_tokens"], line["level"]
        assert told == ("openai", "succeeded", "length", 3, "info")
        assert line["duration_s"] >= line["time_to_first_token_s"] > 0
    assert not [word for word in ("Nobody", KEY) if word in watched.cog.log()]


@pytest.mark.servers
@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_takes_too_long_has_failed_and_was_not_cancelled(watched: Watched, stream: bool) -> None:
    before = watched.requests().get(("failed", "E2601"), 0)
    body = {"prompt": "Earth", "max_tokens": 4000, "stream": stream}
    response = watched.api.post("/v1/completions", json=body, headers={"X-Request-ID": f"slow-{stream}"})
    assert response.status_code == (200 if stream else 504)
    last = data_of(response.text)[-1] if stream else response.text
    assert json.loads(last)["error"]["code"] == "E2601"
    assert watched.line_of(f"slow-{stream}")["code"] == "E2601"
    assert watched.requests()[("failed", "E2601")] == before + 1


@pytest.mark.servers
def test_a_client_that_leaves_is_told_as_that(watched: Watched) -> None:
    headers, body = {"X-Request-ID": "left"}, {"prompt": "E", "max_tokens": 4000}
    with pytest.raises(httpx.ReadTimeout):
        watched.api.post("/v1/completions", json=body, headers=headers, timeout=2.5)
    line = watched.line_of("left")
    assert line["outcome"] == "cancelled"
    spans = watched.receiver.trace
    (span,) = wait_until(
        lambda: [each for each in spans(line["trace_id"]) if each.name == "POST /v1/completions"]
    )
    assert span.attributes["cog_triton.cancelled"] is True
    assert "http.response.status_code" not in span.attributes


@pytest.mark.servers
def test_every_line_has_its_time_level_and_source_and_tritons_are_taken_apart(watched: Watched) -> None:
    found = watched.lines()
    assert all({"timestamp", "level", "logger", "message"} <= set(line) for line in found)
    values = [value for line in found for name, value in line.items() if name != "inputs"]
    assert all(isinstance(value, (str, int, float, bool, list)) for value in values if value)
    by_logger = {name: [line for line in found if line["logger"] == name] for name in ("triton", ENGINE)}
    begun, *_ = [line for line in by_logger["triton"] if "Started HTTPService" in line["message"]]
    assert begun["level"] == "info"
    assert begun["source"].startswith("http_server.cc:")
    assert [line for line in by_logger[ENGINE] if "engine ready" in line["message"]]


@pytest.mark.servers
def test_a_failure_has_its_code_also_in_the_engine_servers_log(watched: Watched) -> None:
    assert watched.predict("long", prompt=PROMPT * 1000)["status"] == "failed"
    line = watched.line_of("long")
    assert (line["level"], line["outcome"], line["code"]) == ("error", "failed", "E1002")
    (seed,) = [seed for seed, fault in FAULT_SEEDS.items() if fault == "fail"]
    assert watched.predict("failing", prompt="hi", max_tokens=50, seed=seed)["status"] == "failed"
    assert watched.line_of("failing")["code"] == "E2109"
    line = watched.line_of("failing", ENGINE)
    assert line["request_ids"] == ["failing"]
    assert len(line["engine_request_ids"]) == 1


@pytest.mark.servers
def test_a_request_that_is_lost_with_a_killed_engine_has_its_line(watched: Watched) -> None:
    headers = {"Prefer": "respond-async"}
    body = {"input": {"prompt": "hi", "max_tokens": 1000}}
    before = watched.cog.counters["slot_tokens_total"]
    assert watched.cog.client.put("/predictions/lost", json=body, headers=headers).status_code == 202
    # Without a token it would be sent again, and nobody would notice.
    wait_until(lambda: watched.cog.counters["slot_tokens_total"] > before + 20)
    for pid in engine_pids(watched.cog.triton_http_port):
        os.kill(pid, signal.SIGKILL)
    assert watched.line_of("lost")["code"] == "E2107"
    wait_until(lambda: "engine server is ready again" in watched.cog.log())


def test_lines_that_are_not_as_expected_are_kept_as_text() -> None:
    assert json.loads(flat("panicked at 'x'") or "")["message"] == "panicked at 'x'"
    assert json.loads(as_json("triton: | model | 1 |"))["message"] == "| model | 1 |"
    assert json.loads(as_json("engine_server: a library's line"))["logger"] == "engine_server"
    assert json.loads(as_json("engine: paced at /engine"))["logger"] == "cog_triton.runner"
    assert json.loads(as_json("warning: old tar"))["level"] == "warning"
    assert json.loads(as_json("E2106 StartFailed: it did not"))["code"] == "E2106"
