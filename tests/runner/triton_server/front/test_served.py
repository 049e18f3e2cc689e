"""The front before a real Triton: the same answers, types, statistics."""

import json
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.runner.servers import ENSEMBLE, HOST, SLOT, TritonUnderTest, wait_until
from tests.runner.triton_server.front.running import ASKED, QUESTION, inference

pytestmark = pytest.mark.servers

LONG = {"text_input": QUESTION, "max_tokens": 4000, "stream": True}


# Triton's own answers

PREPROCESSING = "/v2/models/preprocessing"
QUERY = {"name": "QUERY", "datatype": "BYTES", "shape": [1, 1], "data": ["a"]}
READS = [
    *(
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        ENSEMBLE,
        SLOT,
        f"{ENSEMBLE}/ready",
        f"{ENSEMBLE}/config",
    ),
    *(f"{ENSEMBLE}/versions/1", f"{ENSEMBLE}/versions/2", f"{ENSEMBLE}/versions/1/ready"),
    *("/v2/models/none", "/v2/models/none/ready", "/v2/models/none/config"),
]
SAME: list[tuple[str, object]] = [
    (f"{ENSEMBLE}/generate", ASKED),
    (f"{ENSEMBLE}/generate", ASKED | {"id": "x"}),
    (f"{ENSEMBLE}/generate", ASKED | {"max_tokens": [5], "stop_words": ["a"], "temperature": 1}),
    (f"{ENSEMBLE}/generate", ASKED | {"unknown": 1}),
    (f"{ENSEMBLE}/generate", {"text_input": "a"}),
    (f"{ENSEMBLE}/generate", {}),
    (f"{ENSEMBLE}/generate", ASKED | {"text_input": ""}),
    (f"{ENSEMBLE}/generate", ASKED | {"parameters": {"a": 1}}),
    (f"{ENSEMBLE}/versions/1/generate", ASKED),
    (f"{ENSEMBLE}/generate_stream", ASKED),
    (f"{ENSEMBLE}/generate_stream", ASKED | {"stream": True}),
    (f"{ENSEMBLE}/generate_stream", {"text_input": "a"}),
    (f"{SLOT}/generate", {"input_ids": [1, 2], "request_output_len": 3, "runtime_top_p": 5.0}),
    (f"{SLOT}/generate_stream", {"input_ids": [1, 2], "request_output_len": 3, "runtime_top_p": 5.0}),
    (f"{PREPROCESSING}/infer", {"inputs": [QUERY], "id": "x", "outputs": [{"name": "INPUT_ID"}]}),
    (f"{PREPROCESSING}/infer", {"inputs": [QUERY], "outputs": [{"name": "NONE"}]}),
    (f"{PREPROCESSING}/infer", {"inputs": []}),
    (f"{PREPROCESSING}/infer", {"inputs": [QUERY | {"name": "NONE"}]}),
    (f"{PREPROCESSING}/infer", {"inputs": [QUERY | {"datatype": "FP32", "data": [1]}]}),
]


def test_the_front_answers_as_triton_does(triton: TritonUnderTest) -> None:
    own = triton.service.stack.triton_url
    for path in READS:
        assert _same(httpx.get(triton.url + path, timeout=300)) == _same(
            httpx.get(own + path, timeout=300)
        ), path
    for path, body in SAME:
        ours, its = (
            httpx.post(url + path, content=json.dumps(body), timeout=300) for url in (triton.url, own)
        )
        assert _same(ours) == _same(its), (path, body)


def _same(response: httpx.Response) -> tuple[int, str, object]:
    kind = response.headers["content-type"] if response.text else ""
    shown = _merged(response.text) if kind.startswith("text/event-stream") else response.text
    return response.status_code, kind, shown


def _merged(stream: str) -> list[dict[str, Any]]:
    """Its events. Those that differ in their text alone are one: a busy machine bundles tokens."""
    merged: list[dict[str, Any]] = []
    for event in (json.loads(line.removeprefix("data: ")) for line in stream.splitlines() if line):
        text = event.pop("text_output", "")
        if not merged or merged[-1] | {"text_output": None} != event | {"text_output": None}:
            merged.append(event | {"text_output": ""})
        merged[-1]["text_output"] += text
    return merged


@pytest.mark.parametrize(
    ("path", "body", "status", "its_status"),
    [
        # A model that may send several responses is answered if it sends one.
        (f"{ENSEMBLE}/infer", {"inputs": []}, 400, 501),
        # Errors of the caller are 400, and have a code.
        (f"{ENSEMBLE}/generate", [], 400, 500),
        (f"{ENSEMBLE}/generate", ASKED | {"max_tokens": "5"}, 400, 500),
        (f"{PREPROCESSING}/infer", {}, 400, 500),
        # Management is closed.
        ("/v2/repository/index", {}, 403, 200),
    ],
)
def test_where_the_front_differs_on_purpose(
    triton: TritonUnderTest, path: str, body: object, status: int, its_status: int
) -> None:
    """And by 400 to generate for several responses: Triton answers 200 with an error, and may crash."""
    own = triton.service.stack.triton_url
    ours, its = (httpx.post(url + path, content=json.dumps(body), timeout=300) for url in (triton.url, own))
    assert (ours.status_code, its.status_code) == (status, its_status)


def test_a_stream_goes_on_after_a_request_that_is_refused(stub: Any) -> None:
    too_many = inference(max_tokens=1 << 40, datatype="INT64")
    answers = [*stub.ModelStreamInfer(iter([inference(), too_many, inference()]))]
    assert sorted("E1103" in each.error_message for each in answers) == [False, False, True]
    with pytest.raises(grpc.RpcError, match="E1103"):
        stub.ModelInfer(too_many)


def test_errors_of_grpc_calls_do_not_end_triton(triton: TritonUnderTest, stub: Any) -> None:
    """Triton 2.51 crashed within ten such streams, or a few hundred such calls (server#8708)."""
    pid = triton.service.stack.triton.pid
    bad = inference()
    bad.inputs.add(name="temperature", datatype="FP32", shape=[1, 1])
    bad.raw_input_contents.append(np.float32(-1).tobytes())
    for _ in range(20):
        asked = [inference(is_streaming=True), bad, inference(max_tokens=20, is_streaming=True)]
        streams = [
            stub.ModelStreamInfer(iter(asked), metadata=[("triton_grpc_error", "true")]) for _ in range(4)
        ]
        calls = [stub.ModelInfer.future(bad) for _ in range(4)]
        for each in [*streams, *calls]:
            with pytest.raises(grpc.RpcError, match="E1103"):
                list(each) if each in streams else each.result()
            assert each.code() == grpc.StatusCode.INVALID_ARGUMENT
    wait_until(lambda: triton.counters.is_settled)
    assert triton.service.stack.triton.pid == pid


def test_streams_with_requests_for_all_kinds_of_models_do_not_end_triton(
    triton: TritonUnderTest, stub: Any
) -> None:
    """Triton 2.51 aborted after a few such streams."""
    pid = triton.service.stack.triton.pid
    asked = [
        inference(model, max_tokens=20, is_streaming=number % 2 == 0)
        for number, model in enumerate(
            ["ensemble", "preprocessing", "unknown", "ensemble", "tensorrt_llm"] * 5
        )
    ]
    for number in range(30):
        streams = [stub.ModelStreamInfer(iter(asked)) for _ in range(3)]
        for each in streams:
            if number % 3:
                for answer in each:
                    assert answer.infer_response.id == "asked"
            else:
                next(each)
                each.cancel()
    wait_until(lambda: triton.counters.is_settled)
    assert triton.service.stack.triton.pid == pid


def test_statistics_are_those_of_the_metrics(triton: TritonUnderTest, stub: Any) -> None:
    """Triton's own are not read while a stream grows: 2.51 would corrupt its memory. Here nothing runs."""
    wait_until(lambda: triton.counters.is_settled)
    with httpx.Client(base_url=f"http://{HOST}:{triton.http_port}") as client:

        def statistics() -> Any:
            return client.get(f"{ENSEMBLE}/versions/1/stats").json()["model_stats"][0]

        before = statistics()
        for _ in range(3):
            assert client.post(f"{ENSEMBLE}/generate", json=ASKED).status_code == 200
        # Triton counts a request only after its response.
        wait_until(lambda: statistics()["inference_count"] >= before["inference_count"] + 3)
        found, everything = statistics(), client.get("/v2/models/stats").json()["model_stats"]
        unknown = [client.get(f"/v2/models/{name}/stats") for name in ("nothing", "ensemble/versions/7")]
        assert client.post(f"{ENSEMBLE}/stats").status_code == 405
    assert found in everything
    assert [each["name"] for each in everything] == sorted(each["name"] for each in everything)
    assert [each.status_code for each in unknown] == [404, 404]
    assert all("E1108" in each.text for each in unknown)
    (its,) = httpx.get(f"{triton.service.stack.triton_url}{ENSEMBLE}/stats").json()["model_stats"]
    assert its.keys() == found.keys()
    for name, stat in its["inference_stats"].items():
        ours = found["inference_stats"][name]
        assert ours["count"] == stat["count"], name
        if name != "fail":  # Metrics have no times of failures, and whole microseconds.
            assert ours["ns"] == pytest.approx(stat["ns"], abs=1000 * (1 + stat["count"])), name
    (by_grpc,) = stub.ModelStatistics(pb.ModelStatisticsRequest(name="ensemble")).model_stats
    assert by_grpc.inference_stats.success.ns == found["inference_stats"]["success"]["ns"]
    with pytest.raises(grpc.RpcError, match="E1108") as raised:
        stub.ModelStatistics(pb.ModelStatisticsRequest(name="nothing"))
    assert raised.value.code() == grpc.StatusCode.NOT_FOUND
