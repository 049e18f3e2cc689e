"""Two runners with the paced engine, and requests whose answers tell which of them served."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from engine.machine.processes import session_members
from perf.routers import FLEET
from runner.settings.ports import free_ports
from tests.runner.paced_engine import PacedModel, make_paced_model
from tests.runner.servers import DEADLINE_S, HOST, KEEPS_ALL, CogUnderTest

needs_environment = pytest.mark.skipif(not FLEET.is_dir(), reason="no .venv-fleet: make test-fleet makes it")
NAMES = ("A", "B")
TOKENS_PER_SECOND = 100
_TOGETHER_S = 0.002
"""Time between the tokens of one piece of output, at most."""
_SHORT_S = 5.0
"""Time for a short answer: a request to a stopped server takes longer."""


@dataclass
class Answer:
    """What came of a request."""

    url: str
    prompt: str
    tokens: int
    text: str = ""
    is_done: bool = False
    error: str = ""
    arrivals_s: list[float] = field(default_factory=list)
    """Times when text arrived."""
    began: asyncio.Event = field(default_factory=asyncio.Event)

    @property
    def server(self) -> str:
        """The server that answered: its chat template begins the prompt with its name."""
        return self.text[:1]


class Fleet:
    """Two runners, at the same addresses whenever they are started again. Stop it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._models: dict[str, PacedModel] = {}
        for name in NAMES:
            template = f"{name} {{{{ messages[0].content }}}}"
            self._models[name] = make_paced_model(folder / name, TOKENS_PER_SECOND, chat_template=template)
        self._ports = dict(zip(NAMES, free_ports(2), strict=True))
        self._servers: dict[str, CogUnderTest] = {}
        self.client: httpx.AsyncClient
        self.start()

    @asynccontextmanager
    async def whole(self, urls: Iterable[str]) -> AsyncIterator[None]:
        """Start what a test before this one ended, wait until all routers use it, and let it be asked."""
        # NOTE: in this thread, with which the servers end.
        self.start()
        client = httpx.AsyncClient(timeout=DEADLINE_S, limits=KEEPS_ALL, trust_env=False)
        async with client as self.client:
            await asyncio.gather(*map(self.wait_until_used, urls))
            yield

    @property
    def urls(self) -> list[str]:
        return [f"http://{HOST}:{port}" for port in self._ports.values()]

    def start(self) -> None:
        """Start the servers that do not run, and wait until all are ready."""
        missing = [name for name in NAMES if name not in self._servers]
        for name in missing:
            folder = self._folder / f"{name}-{time.monotonic_ns()}"
            folder.mkdir()
            settings = {"OPENAI_HOST": HOST, "OPENAI_PORT": str(self._ports[name]), "OPENAI_MODELS": "m"}
            settings["STOP_GRACE_PERIOD"] = str(DEADLINE_S)
            self._servers[name] = CogUnderTest(self._models[name], folder, wait=False, **settings)
        for name in missing:
            self._servers[name].server.wait_ready(DEADLINE_S)

    def signal(self, name: str, number: signal.Signals) -> None:
        """Send a signal to all processes of a server; SIGTERM only to the first, as its platform does."""
        pid = self._servers[name].server.pid
        for each in [pid] if number is signal.SIGTERM else session_members(pid):
            with suppress(ProcessLookupError):
                os.kill(each, number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._gone = self._servers.pop(name)

    def is_gone(self) -> bool:
        """Return True once the server that was killed or terminated last has ended."""
        return not self._gone.server.is_running()

    def expected(self, answer: Answer) -> str:
        """Return the text that the server which answered must give."""
        return self._models[answer.server].expected_text(f"{answer.server} {answer.prompt}", answer.tokens)

    def is_whole(self, answer: Answer) -> bool:
        return answer.is_done and answer.server in NAMES and answer.text == self.expected(answer)

    def lost(self, answers: Iterable[Answer]) -> Counter[tuple[str, str, str]]:
        """Count the answers that are not whole, by URL, error and what came of their texts."""
        return Counter((each.url, each.error, each.text) for each in answers if not self.is_whole(each))

    async def ask(
        self, url: str, tokens: int = 5, session: str = "", *, answer: Answer | None = None
    ) -> Answer:
        """Stream a chat from a URL. What goes wrong is in the answer."""
        answer = answer or Answer(url, f"Tell me of {url} at {time.monotonic_ns()}", tokens)
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": answer.prompt}],
            "max_tokens": tokens,
            "stream": True,
        }
        headers = {"X-Session-ID": session} if session else {}
        try:
            async with self.client.stream(
                "POST", f"{url}/v1/chat/completions", json=body, headers=headers
            ) as response:
                if response.status_code != httpx.codes.OK:
                    answer.error = f"{response.status_code} {(await response.aread()).decode()}"
                async for line in response.aiter_lines():
                    _take(line, answer)
        except httpx.HTTPError as exc:
            answer.error = repr(exc)
        answer.began.set()
        return answer

    async def ask_all(self, urls: Sequence[str], count: int = 6) -> list[Answer]:
        """Ask for short answers, several from each URL at the same time."""
        return await asyncio.gather(*(self.ask(url) for url in urls for _ in range(count)))

    async def load(self, urls: Sequence[str], tokens: int, count: int = 8) -> list[asyncio.Task[Answer]]:
        """Begin long streams at each URL, and return once all have their first text."""
        answers = [
            Answer(url, f"Tell me story {index} of {url}", tokens) for url in urls for index in range(count)
        ]
        ends = [url for url in urls for _ in range(count)]
        tasks = [
            asyncio.create_task(self.ask(url, tokens, answer=answer))
            for url, answer in zip(ends, answers, strict=True)
        ]
        for answer in answers:
            await answer.began.wait()
        return tasks

    async def wait_for(self, condition: Callable[[], Coroutine[Any, Any, bool]]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not await condition():
            assert time.monotonic() < deadline_s, f"not within {DEADLINE_S:g} s"
            await asyncio.sleep(0.05)

    async def wait_until_used(self, url: str) -> None:
        """Wait until a router sends requests to both servers."""

        async def is_used() -> bool:
            return {answer.server for answer in await self.ask_all([url])} == set(NAMES)

        await self.wait_for(is_used)

    async def wait_until_unbuffered(self, url: str) -> None:
        """Wait until most tokens of a stream come one by one: a busy machine does not let all do so."""

        async def is_unbuffered() -> bool:
            times = (await self.ask(url, TOKENS_PER_SECOND // 2)).arrivals_s
            alone = sum(after - before > _TOGETHER_S for before, after in pairwise(times))
            return alone > TOKENS_PER_SECOND // 4

        await self.wait_for(is_unbuffered)

    async def wait_until_avoided(self, url: str, name: str) -> None:
        """Wait until a router sends nothing to a server that does not answer."""

        async def is_avoided() -> bool:
            asked = asyncio.gather(*(self.ask(url) for _ in range(6)))
            try:
                answers = await asyncio.wait_for(asked, _SHORT_S)
            except asyncio.TimeoutError:
                return False
            return all(self.is_whole(answer) and answer.server != name for answer in answers)

        await self.wait_for(is_avoided)

    def stop(self) -> None:
        for server in self._servers.values():
            for pid in session_members(server.server.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            server.close()


def _take(line: str, answer: Answer) -> None:
    """Take a line of a stream."""
    data = line.removeprefix("data: ")
    if data == line:
        return
    if data == "[DONE]":
        answer.is_done = True
        return
    document = json.loads(data)
    if "error" in document:
        answer.error = json.dumps(document["error"])
    text = "".join(choice["delta"].get("content") or "" for choice in document.get("choices", ()))
    if text:
        answer.text += text
        answer.arrivals_s.append(time.monotonic())
        answer.began.set()
