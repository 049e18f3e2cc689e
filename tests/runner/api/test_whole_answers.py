"""The API server lets the engine server collect the tokens of an answer that is no stream."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
import msgspec

from runner.engines.protocol.messages import Finished, FromClient, Ready, Submit, Tokens
from runner.engines.protocol.wire import decode_frames, frame
from tests.runner.api.apis import CHAT_TEMPLATE
from tests.runner.api.processes import settings_of, started
from tests.runner.paced_engine import END_ID
from tests.runner.servers import DEADLINE_S

ASKED: dict[str, dict[str, Any]] = {
    "completions": {"prompt": ["hi", "there"], "n": 2},
    "chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "responses": {"input": "hi"},
    "messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
}
NUM_TEXTS = {"completions": 4}


def test_tokens_are_collected_where_the_answer_is_no_stream(tmp_path: Path) -> None:
    template = tmp_path / "template.jinja"
    template.write_text(CHAT_TEMPLATE)
    settings, port = settings_of(tmp_path, CHAT_TEMPLATE=str(template))
    path = tmp_path / "engine_socket"
    submits: list[Submit] = []

    async def engine_server(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        encoder, buffer = msgspec.msgpack.Encoder(), bytearray()
        decoder: msgspec.msgpack.Decoder[list[FromClient]] = msgspec.msgpack.Decoder(list[FromClient])
        writer.write(frame(encoder, [Ready("paced", 1000, 1000, 8)]))
        while data := await reader.read(1 << 16):
            buffer += data
            for messages in decode_frames(buffer, decoder):
                for submit in messages:
                    assert isinstance(submit, Submit)
                    submits.append(submit)
                    writer.write(frame(encoder, [Tokens([(submit.request_id, [5])])]))
                    writer.write(frame(encoder, [Finished(submit.request_id, "length")]))
        writer.close()

    async def run() -> None:
        async with started(settings, path, engine_server) as server:
            await server.wait_ready()
            async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
                for api, body in ASKED.items():
                    url = f"http://127.0.0.1:{port}/v1/{api}"
                    for stream, expected in ((True, None), (False, [END_ID]), (None, [END_ID])):
                        submits.clear()
                        response = await client.post(url, json={**body, "stream": stream})
                        assert response.status_code == 200, response.text
                        found = [submit.collects_until for submit in submits]
                        assert found == [expected] * NUM_TEXTS.get(api, 1)

    asyncio.run(run())
