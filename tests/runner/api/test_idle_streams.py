"""A silent stream is kept alive by what clients ignore, also before its first token."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest

from errors.coded_error import CodedError
from errors.engines import EngineCrashed
from runner.api.idle_streams import IdleStreams, Stream
from tests.runner.api.writing_model import WritingModel

MESSAGES = [{"role": "user", "content": "a"}]
COMMENT, PING = b": keep-alive\n\n", b'event: ping\ndata: {"type":"ping"}\n\n'
APIS: list[tuple[str, dict[str, Any], bytes]] = [
    ("/v1/chat/completions", {"messages": MESSAGES}, COMMENT),
    ("/v1/completions", {"prompt": "a"}, COMMENT),
    ("/v1/responses", {"input": "a"}, COMMENT),
    ("/v1/messages", {"messages": MESSAGES, "max_tokens": 50}, PING),
]


class Asked:
    """One streaming request of an ASGI client that sees each part when it is sent."""

    def __init__(
        self, model: WritingModel, path: str, body: dict[str, Any], num_idle: int, idle: bytes
    ) -> None:
        """Write the first token once ``num_idle`` times ``idle`` were sent."""
        self._model, self._idle, self._num_idle = model, idle, num_idle
        self._body = json.dumps({"stream": True, **body}).encode()
        headers = [(b"content-type", b"application/json")]
        self._scope = {
            "type": "http",
            "method": "POST",
            "path": path,
            "headers": headers,
            "query_string": b"",
        }
        self.statuses: list[int] = []
        self.sent = b""
        self.error: CodedError | None = None
        """Raised in place of the first token."""
        self._may_write = asyncio.Event()
        model.before_first = self._before_first if num_idle else None

    async def _before_first(self) -> None:
        await self._may_write.wait()
        if self.error is not None:
            raise self.error

    async def run(self) -> Asked:
        await self._model.application(self._scope, self._receive, self._send)
        return self

    async def _receive(self) -> dict[str, Any]:
        return {"type": "http.request", "body": self._body, "more_body": False}

    async def _send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self.statuses.append(message["status"])
        self.sent += message.get("body", b"")
        if self.sent.count(self._idle) >= self._num_idle:
            self._may_write.set()


@pytest.mark.parametrize(("path", "body", "idle"), APIS)
async def test_a_stream_that_waits_for_its_first_token_is_kept_alive(
    tmp_path: Path, path: str, body: dict[str, Any], idle: bytes
) -> None:
    model = WritingModel(tmp_path, OPENAI_STREAM_KEEP_ALIVE="0.05")
    asked = await Asked(model, path, body, 3, idle).run()
    plain = await Asked(model, path, body, 0, idle).run()
    assert asked.statuses == plain.statuses == [200]
    assert asked.sent.startswith(idle * 3)

    def num_events(sent: bytes) -> int:
        return sent.replace(idle, b"").count(b"\n\n")

    assert num_events(asked.sent) == num_events(plain.sent) > 3


@pytest.mark.parametrize(("path", "body", "idle"), APIS)
async def test_once_a_stream_was_kept_alive_an_error_is_an_event_of_it(
    tmp_path: Path, path: str, body: dict[str, Any], idle: bytes
) -> None:
    asked = Asked(WritingModel(tmp_path, OPENAI_STREAM_KEEP_ALIVE="0.05"), path, body, 2, idle)
    asked.error = EngineCrashed(engine_kind="paced", reason="it ended")
    await asked.run()
    assert asked.statuses == [200]
    assert b"E2107" in asked.sent.removeprefix(idle * 2).partition(b"data: ")[2]


async def test_nothing_comes_before_what_waits_for_the_client(tmp_path: Path) -> None:
    class Slow(Asked):
        has_started: list[bool]

        async def _send(self, message: Any) -> None:
            if message["type"] == "http.response.start":
                await asyncio.sleep(0.6)
            else:
                self.has_started.append(bool(self.statuses))
            await super()._send(message)

    model = WritingModel(tmp_path, OPENAI_STREAM_KEEP_ALIVE="0.2")
    await Asked(model, *APIS[0][:2], 0, COMMENT).run()  # What is made at the first call takes time.
    asked = Slow(model, *APIS[0][:2], 0, COMMENT)
    asked.has_started = []
    await asked.run()
    assert len(asked.has_started) > 3
    assert all(asked.has_started)


async def test_no_stream_is_kept_alive_if_the_setting_is_0() -> None:
    """An error before the first token then has its own status, whenever it happens."""

    streams = IdleStreams(0)
    streams.watch(cast(Stream, None))
    assert len(asyncio.all_tasks()) == 1
