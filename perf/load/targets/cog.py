"""Cog's prediction API: the cog-triton runner, and the mock; JSON or server-sent events."""

import json
import re
from collections.abc import Mapping
from typing import Any

from perf.load.record import Answer
from perf.load.response import Response, events
from perf.load.targets.target import Posting, Workload

_SERVER_LINE = re.compile(
    r"^(Serverside|Expected) (tokens per second|execution time|time to first token): ([0-9.]+)", re.MULTILINE
)
_TOKENS_LINE = re.compile(r"^Tokens processed: (\d+)", re.MULTILINE)


class CogTarget(Posting):
    """A target that gets predictions with these inputs at ``url``/predictions."""

    def __init__(self, url: str, inputs: Mapping[str, Any], *, is_streaming: bool) -> None:
        headers = {"Accept": "text/event-stream"} if is_streaming else {}
        super().__init__(url, "/predictions", {"input": inputs}, headers)

    def read_ok(self, response: Response) -> Answer:
        answer = Answer()
        prediction = None
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            for event in events(response):
                if event.name == "output":
                    answer.output_s.append(event.at_s)
                elif event.name in ("completed", "failed", "canceled"):
                    prediction = json.loads(event.data)
        else:
            prediction = json.loads(response.body)
        read_prediction(answer, prediction)
        return answer


def runner_inputs(workload: Workload) -> dict[str, Any]:
    """Return the workload in the runner's inputs; the others stay at their defaults, as users leave them."""
    inputs: dict[str, Any] = {"prompt": workload.prompt, "max_tokens": workload.output_tokens}
    if workload.is_fixed_length:
        inputs["min_tokens"] = workload.output_tokens
    return {**inputs, "log_performance_metrics": True, **workload.extra}


def read_prediction(answer: Answer, prediction: Any) -> None:
    """Take status, counts and the server's own figures from a finished prediction's document."""
    if not isinstance(prediction, dict) or prediction.get("status") != "succeeded":
        answer.outcome = "failed"
        document = prediction if isinstance(prediction, dict) else {}
        answer.error = str(document.get("error") or "the stream ended without a finished prediction")
        return
    metrics = prediction.get("metrics") or {}
    logs = prediction.get("logs") or ""
    answer.server = {f"{kind} {name}": float(value) for kind, name, value in _SERVER_LINE.findall(logs)}
    answer.input_tokens = metrics.get("input_token_count")
    if "output_token_count" in metrics:
        answer.output_tokens = int(metrics["output_token_count"])
    elif (line := _TOKENS_LINE.search(logs)) is not None:
        answer.output_tokens = int(line[1])
    else:
        output = prediction.get("output")
        answer.output_tokens = len(output) if isinstance(output, list) else int(bool(output))
