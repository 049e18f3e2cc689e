"""The OpenAI-compatible API of a real runner: its own process, in front of a real Triton."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from runner.http.event_stream import EventParser
from tests.runner.paced_engine import PacedModel
from tests.runner.servers import DEADLINE_S, HOST, TritonUnderTest, free_ports

CHAT_TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}{% endfor %}"
    "{% if tools %}<tools>{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<assistant>{% endif %}"
)


class APIClient:
    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://{HOST}:{self.port}"
        self.client = httpx.Client(base_url=self.url, timeout=DEADLINE_S)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, json=body)

    def ask(self, path: str, **body: Any) -> dict[str, Any]:
        """Post and return the answer, which must be a success."""
        response = self.post(path, **body)
        assert response.status_code == 200, response.text
        return response.json()

    def named_events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        """Return the data of a stream whose events have the names of their types."""
        response = self.post(path, stream=True, **body)
        assert response.status_code == 200, response.text
        events = EventParser().feed(response.content)
        documents: list[dict[str, Any]] = [json.loads(event.data) for event in events]
        assert [event.name for event in events] == [each["type"] for each in documents]
        return documents

    def refused(self, path: str, status: int, **body: Any) -> dict[str, Any]:
        response = self.post(path, **body)
        assert response.status_code == status, response.text
        return error_of(response)

    def events(self, path: str, **body: Any) -> list[dict[str, Any]]:
        response = self.post(path, stream=True, **body)
        assert response.status_code == 200, response.text
        assert response.headers["content-type"].startswith("text/event-stream")
        *documents, last = data_of(response.text)
        assert last == "[DONE]"
        return [json.loads(each) for each in documents]

    @contextmanager
    def streaming(self, path: str, **body: Any) -> Iterator[Iterator[str]]:
        """Provide the data of a stream's events while they come; leaving closes the connection."""
        with (
            httpx.Client(base_url=self.url, timeout=DEADLINE_S, headers=self.client.headers) as client,
            client.stream("POST", path, json={"stream": True, **body}) as response,
        ):
            assert response.status_code == 200, response.read()
            yield (line.removeprefix("data: ") for line in response.iter_lines() if line)

    def close(self) -> None:
        self.client.close()


class API(APIClient):
    def __init__(self, model: PacedModel, folder: Path, **environment: str) -> None:
        super().__init__(*free_ports(1))
        ours = {"OPENAI_PORT": str(self.port), "OPENAI_HOST": HOST}
        self.triton = TritonUnderTest(model, folder, **{**ours, **environment})
        self.model = model
        self.counters = self.triton.counters

    def close(self) -> None:
        super().close()
        self.triton.close()


def data_of(text: str) -> list[str]:
    return [event.data.decode() for event in EventParser().feed(text.encode())]


def error_of(response: httpx.Response) -> dict[str, Any]:
    document = response.json()
    assert list(document) == ["error"]
    error: dict[str, Any] = document["error"]
    assert list(error) == ["message", "type", "param", "code"]
    return error
