"""The API server lets the engine server collect the tokens of an answer that is no stream."""

from pathlib import Path
from typing import Any

import httpx

from tests.runner.api.processes import StandInEngineServer, settings_of, started
from tests.runner.paced_engine import END_ID
from tests.runner.servers import DEADLINE_S

ASKED: dict[str, dict[str, Any]] = {
    "completions": {"prompt": ["hi", "there"], "n": 2},
    "chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "responses": {"input": "hi"},
    "messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
}
NUM_TEXTS = {"completions": 4}


async def test_tokens_are_collected_where_the_answer_is_no_stream(tmp_path: Path) -> None:
    settings, port = settings_of(tmp_path)
    engine_server = StandInEngineServer()

    async with started(settings, engine_server) as server:
        await server.wait_ready()
        async with httpx.AsyncClient(timeout=DEADLINE_S) as client:
            for api, body in ASKED.items():
                url = f"http://127.0.0.1:{port}/v1/{api}"
                for stream, expected in ((True, None), (False, [END_ID]), (None, [END_ID])):
                    engine_server.submits.clear()
                    response = await client.post(url, json={**body, "stream": stream})
                    assert response.status_code == 200, response.text
                    found = [submit.collects_until for submit in engine_server.submits]
                    assert found == [expected] * NUM_TEXTS.get(api, 1)
