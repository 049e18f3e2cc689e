"""Predictions through the real Cog server: JSON, server-sent events, webhooks, many at once."""

import json
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from runner.observability.metrics import ENGINE_PHASES as PHASES
from tests.runner.paced_engine import TOKENS_PER_SECOND
from tests.runner.servers import CogUnderTest

pytestmark = pytest.mark.servers

QUESTION = "What is machine learning?"


def text_of(prediction: dict[str, Any]) -> str:
    return "".join(prediction["output"])


def stream(cog: CogUnderTest, **inputs: object) -> Iterator[tuple[str, dict[str, Any]]]:
    headers = {"Accept": "text/event-stream"}
    with cog.client.stream("POST", "/predictions", json={"input": inputs}, headers=headers) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        name = ""
        for line in response.iter_lines():
            if line.startswith("event:"):
                name = line.removeprefix("event:").strip()
            elif line.startswith("data:"):
                yield name, json.loads(line.removeprefix("data:"))


def test_the_documented_curl_request_is_answered_with_text_and_metrics(cog: CogUnderTest) -> None:
    body = json.dumps({"input": {"prompt": QUESTION}})
    command = ["curl", "-s", "-X", "POST", "-H", "Content-Type: application/json", "-d", body]
    result = subprocess.run([*command, f"{cog.url}/predictions"], capture_output=True, check=True)
    prediction = json.loads(result.stdout)
    assert prediction["status"] == "succeeded"
    assert text_of(prediction) == cog.model.expected_text(QUESTION, 512)
    counts = {"input_token_count", "output_token_count", "finish_reason"}
    assert set(prediction["metrics"]) == {"predict_time", *counts}
    metrics = cog.predict(prompt=QUESTION, max_tokens=40, log_performance_metrics=True)["metrics"]
    assert metrics["input_token_count"] == len(cog.model.ids(QUESTION))
    assert metrics["output_token_count"] == 40
    assert metrics["finish_reason"] == "length"
    assert 0 < metrics["tokens_per_second"] <= TOKENS_PER_SECOND
    assert 0 < metrics["time_to_first_token"] < metrics["predict_time"]


def test_the_lines_that_load_tests_read_are_logged_when_asked_for(cog: CogUnderTest) -> None:
    logs = cog.predict(prompt=QUESTION, max_tokens=10, log_performance_metrics=True, seed=7)["logs"]
    lines = dict(line.split(": ", 1) for line in logs.splitlines())
    assert lines["Tokens processed"] == "10"
    assert float(lines["Serverside tokens per second"]) > 0
    for key in ("Serverside execution time", "Serverside time to first token"):
        value, unit = lines[key].split(" ")
        assert float(value) >= 0
        assert unit == "seconds"
    assert lines["Random seed used"] == "7"
    assert lines["Formatted prompt"] == QUESTION
    assert "Tokens processed" not in cog.predict(prompt=QUESTION, max_tokens=2)["logs"]


def test_a_seed_of_zero_is_a_seed_and_none_is_a_new_one_each_time(cog: CogUnderTest) -> None:
    def seed_of(**inputs: object) -> int:
        logs = cog.predict(prompt="hi", max_tokens=1, **inputs)["logs"]
        return int(logs.split("Random seed used: ")[1].split("\n")[0])

    assert seed_of(seed=0) == 0
    assert seed_of(seed=-1) == 2**64 - 1
    assert seed_of(seed=2**64 - 1) == 2**64 - 1
    assert len({seed_of(), seed_of(seed=None), seed_of()}) == 3


def test_greedy_decoding_says_that_it_ignores_the_seed(cog: CogUnderTest) -> None:
    assert "ignores the random seed" in cog.predict(prompt="hi", max_tokens=1, temperature=0)["logs"]
    assert "ignores the random seed" in cog.predict(prompt="hi", max_tokens=1, top_k=1)["logs"]
    assert "ignores" not in cog.predict(prompt="hi", max_tokens=1, temperature=0.7)["logs"]


def test_messages_become_the_prompt_by_the_models_chat_template(cog: CogUnderTest) -> None:
    """Without and with a system prompt; a prompt has its own template."""
    messages = json.dumps([{"role": "user", "content": QUESTION}])
    rendered = f"<user>{QUESTION}<assistant>"
    inputs: list[tuple[dict[str, str], str]] = [
        ({"messages": messages}, rendered),
        ({"messages": messages, "system_prompt": "Be brief."}, f"<system>Be brief.{rendered}"),
        (
            {"prompt": "Cow", "system_prompt": "Fire", "prompt_template": "{system_prompt} + {prompt} = {{"},
            "Fire + Cow = {",
        ),
    ]
    for given, prompt in inputs:
        assert text_of(cog.predict(**given, max_tokens=30)) == cog.model.expected_text(prompt, 30)


def test_the_older_name_of_max_tokens_is_taken_and_stop_sequences_are_separated_by_commas(
    cog: CogUnderTest,
) -> None:
    assert cog.predict(prompt=QUESTION, max_new_tokens=7)["metrics"]["output_token_count"] == 7
    prediction = cog.predict(prompt=QUESTION, stop_sequences="never,machine,is")
    assert text_of(prediction) == "What "
    assert prediction["metrics"]["finish_reason"] == "stop"


def test_server_sent_events_arrive_while_the_text_is_made(cog: CogUnderTest) -> None:
    """The engine paces the text: were it sent at the end, all of it would be there with its first part."""
    count = 2 * TOKENS_PER_SECOND
    names: list[str] = []
    output: list[str] = []
    tokens_made_at: list[float] = []
    before = cog.counters["slot_tokens_total"]
    for name, data in stream(cog, prompt=QUESTION, max_tokens=count):
        names.append(name)
        if name == "output":
            output.append(data["chunk"])
            if len(output) in (1, 20):
                tokens_made_at.append(cog.counters["slot_tokens_total"] - before)
    assert "".join(output) == cog.model.expected_text(QUESTION, count)
    assert names[0] == "start"
    assert names[-1] == "completed"
    assert len(output) > count / 10
    assert tokens_made_at[0] < count / 2, "the first part came when half of it was made"
    assert tokens_made_at[1] < count


def test_a_stream_ends_with_what_its_prediction_is_an_error_too(cog: CogUnderTest) -> None:
    name, data = list(stream(cog, prompt=QUESTION, max_tokens=3))[-1]
    assert (name, data["status"], data["metrics"]["output_token_count"]) == ("completed", "succeeded", 3)
    name, data = list(stream(cog, prompt="x" * 5000))[-1]
    assert (name, data["status"]) == ("completed", "failed")
    assert "E1002 PromptTooLong" in data["error"]


def test_sixty_four_at_once_all_get_their_own_text(cog: CogUnderTest) -> None:
    def predict(number: int) -> bool:
        prompt = f"{number} 日本 {number}"
        prediction = cog.predict(prompt=prompt, max_tokens=50, seed=number)
        assert prediction["status"] == "succeeded", prediction
        is_own_log = prediction["logs"].startswith(
            f"Random seed used: {number}\nFormatted prompt: {prompt}\n"
        )
        return text_of(prediction) == cog.model.expected_text(prompt, 50) and is_own_log

    with ThreadPoolExecutor(64) as pool:
        assert all(pool.map(predict, range(64)))


def test_a_prediction_tells_its_phases_when_asked(cog: CogUnderTest) -> None:
    metrics = cog.predict(prompt=QUESTION, max_tokens=40, log_performance_metrics=True)["metrics"]
    phases = {phase: metrics[f"{phase}_time"] for phase in ("tokenize", *PHASES, "detokenize")}
    assert all(seconds >= 0 for seconds in phases.values())
    # 40 tokens at 200 a second; the engine's clock is the only one that takes any time worth speaking of.
    assert phases["engine"] >= 0.19
    in_order = sum(phases[name] for name in ("tokenize", "queue", "engine", "relay"))
    assert in_order == pytest.approx(40 / metrics["tokens_per_second"], rel=0.05, abs=0.05)
    assert in_order <= metrics["predict_time"]
    assert phases["detokenize"] < phases["engine"]
    stopped = cog.predict(prompt=QUESTION, stop_sequences="mach", log_performance_metrics=True)["metrics"]
    assert stopped["finish_reason"] == "stop"
    assert {"tokenize_time", "detokenize_time"} <= set(stopped), "what is known"
