"""Times of a request for clients of Triton."""

import json

import pytest

from tests.runner.servers import SLOT, TritonUnderTest


@pytest.mark.servers
def test_triton_tells_its_times_to_who_asks_as_nvidias_backend_does(triton: TritonUnderTest) -> None:
    body = {"input_ids": [10, 11], "request_output_len": 4, "streaming": True}
    *_, last = triton.stream(f"{SLOT}/generate_stream", body | {"return_perf_metrics": True})
    assert last["last_token_time_ns"] - last["arrival_time_ns"] >= 15e6
    assert "arrival_time_ns" not in triton.post(f"{SLOT}/generate_stream", body).text
    whole = triton.post(f"{SLOT}/generate", body | {"streaming": False, "return_perf_metrics": True})
    assert json.loads(whole.text)["last_token_time_ns"] > last["last_token_time_ns"]
