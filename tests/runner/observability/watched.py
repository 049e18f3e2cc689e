"""A whole runner, its Cog server and its API, watched by all that watches: metrics, log, traces."""

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from runner.observability.exposition import exposition
from tests.runner.api.apis import CHAT_TEMPLATE
from tests.runner.otlp_receiver import OtlpReceiver, Span
from tests.runner.paced_engine import TOKENS_PER_SECOND, make_paced_model
from tests.runner.servers import DEADLINE_S, HOST, CogUnderTest, free_ports, wait_until

PROMPT = "Nobody may read this.\nNor this second line."
KEY = "opens"
CLIENT_SPAN = "c" * 16
PATHS = {
    "/predictions": "text_completion paced",
    "/v1/completions": "text_completion paced",
    "/v1/chat/completions": "chat paced",
}
"""Names of the spans of their generations."""


@dataclass
class Watched:
    cog: CogUnderTest
    api: httpx.Client
    receiver: OtlpReceiver

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.cog.log().splitlines()]

    def lines_of(self, request_id: str, logger: str = "cog_triton.request") -> list[dict[str, Any]]:
        """Return a logger's lines on a request; those of ``cog_triton.request`` tell how it ended."""
        return [
            line
            for line in self.lines()
            if line["logger"] == logger
            and (line.get("request_id") == request_id or request_id in line.get("request_ids", ()))
        ]

    def line_of(self, request_id: str, logger: str = "cog_triton.request") -> dict[str, Any]:
        (line,) = wait_until(lambda: self.lines_of(request_id, logger))
        return line

    def predict(self, request_id: str, **inputs: object) -> dict[str, Any]:
        answer = self.cog.client.put(f"/predictions/{request_id}", json={"input": inputs})
        return answer.json()

    def requests(self) -> dict[tuple[str, str], int]:
        pattern = r'cog_triton_requests_total{api="openai",code="(\w*)",outcome="(\w+)"} (\S+)'
        found = re.findall(pattern, exposition(self.cog.metrics_dir))
        return {(outcome, code): int(float(count)) for code, outcome, count in found if float(count)}

    def traced(
        self, path: str, *, flags: str = "01", max_tokens: int = 5, **fields: object
    ) -> tuple[httpx.Response, list[Span]]:
        """Return the answer to a client with a trace of its own, and that trace once it is whole."""
        client, body = self.api, {"prompt": PROMPT, "max_tokens": max_tokens, **fields}
        if path == "/predictions":
            client, body = self.cog.client, {"input": body}
        elif "chat" in path:
            body["messages"] = [{"role": "user", "content": body.pop("prompt")}]
        trace_id = os.urandom(16).hex()
        headers = {"traceparent": f"00-{trace_id}-{CLIENT_SPAN}-{flags}"}
        response = client.post(path, json=body, headers=headers)

        def is_whole() -> bool:
            """Nothing is on its way any more: every span's parent is there, or is the client's."""
            spans = self.receiver.trace(trace_id)
            known = {span.span_id for span in spans} | {CLIENT_SPAN}
            names = {span.name for span in spans}
            has_ends = {f"POST {path}", PATHS[path], "engine"} <= names
            return has_ends and all(span.parent_id in known for span in spans)

        if flags == "01":
            wait_until(is_whole)
        return response, self.receiver.trace(trace_id)


@contextmanager
def watched_runner(folder: Path) -> Iterator[Watched]:
    model = make_paced_model(folder / "model", TOKENS_PER_SECOND)
    template = folder / "template.jinja"
    template.write_text(CHAT_TEMPLATE)
    (port,) = free_ports(1)
    with OtlpReceiver() as receiver:
        cog = CogUnderTest(
            model,
            folder,
            CHAT_TEMPLATE=str(template),
            LOG_FORMAT="json",
            COG_TRITON_FAULTS="requests",
            API_KEYS=KEY,
            OPENAI_HOST=HOST,
            OPENAI_PORT=str(port),
            OPENAI_TIMEOUT="5",
            OTEL_EXPORTER_OTLP_ENDPOINT=receiver.url,
            OTEL_BSP_SCHEDULE_DELAY="100",
        )
        headers = {"Authorization": f"Bearer {KEY}"}
        with httpx.Client(base_url=f"http://{HOST}:{port}", headers=headers, timeout=DEADLINE_S) as client:
            yield Watched(cog, client, receiver)
        cog.close()
