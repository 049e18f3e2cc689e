"""The workload, and the interface of every kind of server."""

import json
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from perf.load.http import HttpClient, Request
from perf.load.record import Answer, Outcome
from perf.load.response import Response

BUSY_STATUSES = (409, 429)
_QUOTED_CHARACTERS = 200


@dataclass(frozen=True)
class Workload:
    """The content of each request. ``prompt`` has ``input_tokens`` tokens, as far as that is known."""

    prompt: str
    input_tokens: int
    output_tokens: int
    is_fixed_length: bool = True
    """True for exactly that many output tokens, not at most."""
    extra: Mapping[str, Any] = field(default_factory=dict)
    """Further inputs, sent as they are."""


class Target(Protocol):
    """A kind of server. ``exchange`` runs while time is taken and does the least; ``read`` runs after."""

    url: str

    async def exchange(self, http: HttpClient) -> Sequence[Response]:
        """Send one request; its responses, of which the last holds the output. Raises RequestFailed."""

    def read(self, responses: Sequence[Response]) -> Answer: ...


class Posting(Target):
    """A target that sends one request, the same each time."""

    def __init__(self, url: str, path: str, document: Mapping[str, Any], headers: Mapping[str, str]) -> None:
        self.url = url
        headers = {"Content-Type": "application/json", **headers}
        self.request = Request("POST", url + path, headers, json.dumps(document).encode())

    async def exchange(self, http: HttpClient) -> Sequence[Response]:
        return [await http.send(self.request)]

    def read(self, responses: Sequence[Response]) -> Answer:
        response = responses[-1]
        return self.read_ok(response) if response.status == 200 else refusal(response)

    @abstractmethod
    def read_ok(self, response: Response) -> Answer:
        """Read an answer with status 200."""


def refusal(response: Response) -> Answer:
    """Read a response whose status is not the expected one: its outcome is ``busy`` or ``failed``."""
    text = " ".join(response.body.decode(errors="replace").split())[:_QUOTED_CHARACTERS]
    outcome: Outcome = "busy" if response.status in BUSY_STATUSES else "failed"
    return Answer(outcome=outcome, error=f"HTTP {response.status}: {text}")
