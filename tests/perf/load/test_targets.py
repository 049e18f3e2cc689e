"""Each kind of server: a real one where we have it (Cog, Triton), else one that answers as documented."""

import asyncio
import json
from collections.abc import Callable

import pytest

from perf.load.http import HttpClient, RequestFailed
from perf.load.record import Answer
from perf.load.targets.cog import CogTarget, runner_inputs
from perf.load.targets.openai import OpenAITarget
from perf.load.targets.replicate import ReplicateTarget
from perf.load.targets.target import Target, Workload
from perf.load.targets.triton import TritonTarget
from runner.triton_server.model_names import ENSEMBLE, SLOT
from tests.runner.servers import HOST, CogUnderTest
from tests.scripted_server import Asked, ScriptedServer, Write, json_answer, stream_answer

WORK = Workload(prompt="What is machine learning?", input_tokens=7, output_tokens=12)


def ask(target: Target) -> Answer:
    async def once() -> Answer:
        http = HttpClient(30.0)
        try:
            return target.read(await target.exchange(http))
        finally:
            http.close()

    return asyncio.run(once())


def answers(*texts: bytes) -> Callable[[Asked, Write], bool]:
    def answer(asked: Asked, write: Write) -> bool:
        write(texts[min(asked.number, len(texts) - 1)])
        return True

    return answer


@pytest.mark.servers
@pytest.mark.parametrize("is_streaming", [False, True])
def test_the_runner_is_asked_through_cog(cog: CogUnderTest, is_streaming: bool) -> None:
    answer = ask(CogTarget(cog.url, runner_inputs(WORK), is_streaming=is_streaming))
    assert answer.outcome == "completed", answer.error
    assert answer.output_tokens == WORK.output_tokens
    assert answer.input_tokens == len(cog.model.ids(WORK.prompt))
    assert bool(answer.output_s) is is_streaming
    assert list(answer.output_s) == sorted(answer.output_s)
    assert answer.server["Serverside tokens per second"] > 0
    assert set(answer.server) == {
        f"Serverside {name}" for name in ("tokens per second", "execution time", "time to first token")
    }


@pytest.mark.servers
def test_what_cog_and_triton_refuse_is_a_failure_with_its_reason(cog: CogUnderTest) -> None:
    too_long, no_tokens = {"prompt": "long " * 9000}, {"max_tokens": 0}
    targets: list[tuple[Target, str]] = [
        (CogTarget(cog.url, runner_inputs(WORK) | too_long, is_streaming=False), "E1002"),
        (CogTarget(cog.url, runner_inputs(WORK) | too_long, is_streaming=True), "E1002"),
        (CogTarget(cog.url, runner_inputs(WORK) | no_tokens, is_streaming=False), "HTTP 422"),
        (TritonTarget(f"http://{HOST}:{cog.triton_http_port}", SLOT, Workload("hi", 5000, 12)), "E1002"),
    ]
    for target, reason in targets:
        answer = ask(target)
        assert answer.outcome == "failed"
        assert reason in answer.error


@pytest.mark.servers
@pytest.mark.parametrize("model", [SLOT, ENSEMBLE])
def test_triton_is_asked_for_ids_and_for_text(cog: CogUnderTest, model: str) -> None:
    answer = ask(TritonTarget(f"http://{HOST}:{cog.triton_http_port}", model, WORK))
    assert answer.outcome == "completed", answer.error
    assert answer.output_tokens == WORK.output_tokens
    assert 0 < len(answer.output_s) <= WORK.output_tokens


def test_a_server_without_room_is_busy_and_a_stream_that_ends_early_is_a_failure() -> None:
    full = json_answer('{"error":"At capacity - all prediction slots busy"}', 409)
    early = stream_answer("event: start\ndata: {}", 'event: output\ndata: {"chunk":"a"}')
    for sent, outcome, told in ((full, "busy", "At capacity"), (early, "failed", "ended without")):
        with ScriptedServer(answers(sent)) as server:
            answer = ask(CogTarget(server.url, {}, is_streaming=sent is early))
        assert answer.outcome == outcome
        assert told in answer.error


def _chat(text: str) -> str:
    return "data: " + json.dumps({"choices": [{"delta": {"content": text}}]})


def _completion(text: str) -> str:
    return "data: " + json.dumps({"choices": [{"text": text}]})


USAGE = 'data: {"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}'


@pytest.mark.parametrize(("api", "event"), [("chat", _chat), ("completions", _completion)])
def test_openai_streams_are_counted_by_their_usage(api: str, event: Callable[[str], str]) -> None:
    whole = stream_answer(event(""), event("a"), event("b c"), USAGE, "data: [DONE]")
    with ScriptedServer(answers(whole)) as server:
        answer = ask(OpenAITarget(server.url, api, "m", WORK, "secret"))
        (asked,) = server.asked
    assert (answer.outcome, answer.input_tokens, answer.output_tokens) == ("completed", 7, 5)
    assert len(answer.output_s) == 2  # An empty delta is no output.
    body = json.loads(asked.body)
    assert asked.path == ("/v1/chat/completions" if api == "chat" else "/v1/completions")
    assert asked.headers["authorization"] == "Bearer secret"
    assert (body["model"], body["max_tokens"], body["min_tokens"], body["stream"]) == ("m", 12, 12, True)


def test_an_openai_answer_without_a_stream_is_counted_by_its_usage() -> None:
    document = {"choices": [{"text": "a b c"}], "usage": {"prompt_tokens": 7, "completion_tokens": 5}}
    with ScriptedServer(answers(json_answer(json.dumps(document)))) as server:
        answer = ask(OpenAITarget(server.url, "completions", "m", WORK, is_streaming=False))
        (asked,) = server.asked
    assert (answer.outcome, answer.input_tokens, answer.output_tokens) == ("completed", 7, 5)
    assert not answer.output_s
    assert "stream" not in json.loads(asked.body)


@pytest.mark.parametrize("end", ['data: {"error": {"message": "no"}}', "data: {}", "data: [DONE]"])
def test_openai_streams_that_break_are_failures_and_need_no_usage(end: str) -> None:
    with ScriptedServer(answers(stream_answer(_chat("a"), end))) as server:
        answer = ask(OpenAITarget(server.url, "chat", "m", WORK))
    is_whole = end == "data: [DONE]"  # Without usage its events are counted.
    assert (answer.outcome, answer.output_tokens) == (("completed", 1) if is_whole else ("failed", 0))


class Replicate:
    """Answers as Replicate's HTTP API does: created, stream, and only the second look finds it finished."""

    def __init__(self) -> None:
        self.url = ""
        self._looks = 0

    def __call__(self, asked: Asked, write: Write) -> bool:
        urls = {"get": f"{self.url}/v1/predictions/p", "stream": f"{self.url}/stream/p"}
        if asked.method == "POST":
            write(json_answer(json.dumps({"id": "p", "status": "starting", "urls": urls}), 201))
        elif asked.path == "/stream/p":
            write(stream_answer("event: output\ndata: a", "event: output\ndata: b", "event: done\ndata: {}"))
        else:
            self._looks += 1
            status = "processing" if self._looks == 1 else "succeeded"
            metrics = {"input_token_count": 7, "output_token_count": 12, "predict_time": 1.5}
            write(json_answer(json.dumps({"status": status, "metrics": metrics, "output": ["a", "b"]})))
        return True


@pytest.mark.parametrize(
    ("model", "path", "version"),
    [("owner/name", "/v1/models/owner/name/predictions", None), ("owner/name:abc", "/v1/predictions", "abc")],
)
def test_a_model_on_replicate_is_created_followed_and_read(
    model: str, path: str, version: str | None
) -> None:
    replicate = Replicate()
    with ScriptedServer(replicate) as server:
        replicate.url = server.url
        answer = ask(ReplicateTarget(server.url, model, runner_inputs(WORK), "secret"))
    assert (answer.outcome, answer.input_tokens, answer.output_tokens) == ("completed", 7, 12)
    assert len(answer.output_s) == 2
    assert server.asked[0].path == path
    assert json.loads(server.asked[0].body).get("version") == version
    assert all(asked.headers["authorization"] == "Bearer secret" for asked in server.asked)


def test_what_replicate_refuses_or_does_not_stream_is_a_failure() -> None:
    refused = json_answer('{"detail":"Unauthenticated"}', 401)
    created = json_answer('{"urls": {"get": "http://127.0.0.1/x"}}', 201)
    with ScriptedServer(answers(refused, created)) as server:
        target = ReplicateTarget(server.url, "owner/name", {}, "wrong")
        answer = ask(target)
        assert answer.outcome == "failed"
        assert "Unauthenticated" in answer.error
        with pytest.raises(RequestFailed, match="does not stream"):
            ask(target)
