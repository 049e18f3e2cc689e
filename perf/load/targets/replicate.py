"""A model on Replicate, by its HTTP API: create a prediction, follow its stream, read what it cost."""

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import Any

from perf.load.http import HttpClient, Request, RequestFailed
from perf.load.record import Answer
from perf.load.response import Response, events
from perf.load.targets.cog import read_prediction
from perf.load.targets.target import refusal

API_URL = "https://api.replicate.com"
_ENDED = ("succeeded", "failed", "canceled")
_MOST_LOOKS = 20
_LOOK_PAUSE_S = 0.25


class ReplicateTarget:
    """``model`` is ``owner/name`` (an official model's newest version) or ``owner/name:version``."""

    def __init__(self, url: str, model: str, inputs: Mapping[str, Any], token: str) -> None:
        self.url = url
        self._authorization = {"Authorization": f"Bearer {token}"}
        name, _, version = model.partition(":")
        path = "/v1/predictions" if version else f"/v1/models/{name}/predictions"
        body = {"input": inputs, "stream": True, **({"version": version} if version else {})}
        headers = {"Content-Type": "application/json", **self._authorization}
        self._create = Request("POST", url + path, headers, json.dumps(body).encode())

    async def exchange(self, http: HttpClient) -> Sequence[Response]:
        """Return the finished prediction's document and its stream; or the one refusal."""
        created = await http.send(self._create)
        if created.status not in (200, 201, 202):
            return [created]
        urls = json.loads(created.body).get("urls") or {}
        if "stream" not in urls:
            raise RequestFailed("the model does not stream")
        follow = {"Accept": "text/event-stream", "Cache-Control": "no-store", **self._authorization}
        stream = await http.send(Request("GET", urls["stream"], follow))
        return [await self._finished(http, urls["get"]), stream]

    async def _finished(self, http: HttpClient, url: str) -> Response:
        """Return the prediction's document once it says how it ended, maybe a moment after its stream."""
        for _ in range(_MOST_LOOKS):
            response = await http.send(Request("GET", url, self._authorization))
            if response.status != 200 or json.loads(response.body).get("status") in _ENDED:
                break
            await asyncio.sleep(_LOOK_PAUSE_S)
        return response

    def read(self, responses: Sequence[Response]) -> Answer:
        if len(responses) == 1 or responses[0].status != 200:
            return refusal(responses[0])
        finished, stream = responses
        if stream.status != 200:
            return refusal(stream)
        answer = Answer()
        for event in events(stream):
            if event.name == "output" and event.data:
                answer.output_s.append(event.at_s)
            elif event.name == "error":
                return Answer(outcome="failed", error=event.data.decode(errors="replace"))
        read_prediction(answer, json.loads(finished.body))
        return answer
