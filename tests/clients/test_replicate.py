"""Replicate's clients, in Python and JavaScript, against the runner's Cog server."""

import json
import os
import subprocess

import httpx
import pytest
import replicate
from replicate.exceptions import ReplicateError

from tests.clients.conftest import Runner
from tests.clients.documented import PATH, needed_javascript

pytestmark = pytest.mark.servers

INPUT = {"prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}


class CogTransport(httpx.HTTPTransport):
    """Cog has no /v1 before its paths, no model and version in its answers; this client wants them."""

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        request.url = request.url.copy_with(raw_path=request.url.raw_path.removeprefix(b"/v1"))
        answer = super().handle_request(request)
        if answer.status_code != 200:
            return answer
        prediction = {"model": "local", "version": "local", **json.loads(answer.read())}
        return httpx.Response(200, json=prediction)


def expected(runner: Runner) -> str:
    answer = httpx.post(f"{runner.cog_url}/predictions", json={"input": INPUT}, timeout=300).json()
    return "".join(answer["output"])


def test_the_python_client_makes_a_prediction_and_raises_what_the_server_refuses(runner: Runner) -> None:
    client = replicate.Client(api_token="none", base_url=runner.cog_url, transport=CogTransport())
    prediction = client.predictions.create(version="local", input=INPUT)
    assert prediction.status == "succeeded"
    assert "".join(prediction.output) == expected(runner)
    with pytest.raises(ReplicateError) as refused:
        client.predictions.create(version="local", input={**INPUT, "max_tokens": -1})
    assert refused.value.status == 422


def test_the_javascript_client_makes_a_prediction_and_throws_what_the_server_refuses(runner: Runner) -> None:
    made, refused = (
        subprocess.run(
            ["node", "predict.mjs", runner.cog_url, json.dumps(inputs)],
            cwd=needed_javascript(),
            env={**os.environ, "PATH": PATH},
            capture_output=True,
            text=True,
            timeout=300,
        )
        for inputs in (INPUT, {**INPUT, "max_tokens": -1})
    )
    assert made.returncode == 0, made.stderr
    assert json.loads(made.stdout) == {"status": "succeeded", "text": expected(runner)}
    assert refused.returncode == 1
    assert "422" in refused.stderr
    assert "max_tokens" in refused.stderr
