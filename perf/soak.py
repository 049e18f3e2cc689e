"""A soak: very many requests against the whole stack, each answer checked against its own prompt.

    .venv/bin/python perf/soak.py --requests 100000

Starts the runner on a paced engine, whose output is a function of the prompt; no two prompts are alike, so a
lost, doubled or mixed-up token is seen. Requests come through Cog (JSON, streams) and the OpenAI-compatible
API (JSON, streams); some are cancelled by Cog, some by hanging up in the middle. At the end nothing may be
left: no slot taken, no file, thread or shared memory more than after the warm-up, memory within 2 %.
Exits with 1 if a promise was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import aiohttp
from tokenizers import Tokenizer

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perf.bench.engines import paced_engine
from perf.bench.servers import HOST, run_program, starting_stack
from perf.soak_resources import Resources, measure, settle
from runner.settings.ports import free_ports

_KINDS = (
    *("cog", "cog stream", "openai", "openai stream") * 4,
    *("cog hang-up", "openai hang-up", "cog cancel"),
)
_REFUSED = (409, 429)
_WARM_UP = 0.3
"""Of the requests: until then memory rises, by each tokenizer's cache of 10,000 words among others."""
_PARTS = 10
_SETTLE_S = 10.0
_IDLE_S = 12.0
"""Tokio keeps a thread that has nothing to do for 10 s."""
_READY_TIMEOUT_S = 300.0
_MODEL = "paced"
_WORDS = (
    "water fire steam earth plant human robe judge cow steak",
    "machine learning once upon a time",
)
"""Pieces of prompts."""


@dataclass
class Tally:
    """What happened, by kind and by how it ended."""

    ends: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    tokens: int = 0

    def check(self, kind: str, number: int, is_right: bool, got: str) -> None:
        self.ends[f"{kind}: {'right' if is_right else 'WRONG'}"] += 1
        if not is_right:
            self.wrong.append(f"request {number} ({kind}): {got[:200]!r}")


class Soak:
    """Requests by number: what each asks follows from it alone."""

    def __init__(self, cog_url: str, openai_url: str, tokenizer: Tokenizer, most_tokens: int) -> None:
        self._cog_url = f"{cog_url}/predictions"
        self._openai_url = f"{openai_url}/v1/completions"
        self._tokenizer = tokenizer
        self._most_tokens = most_tokens
        self.tally = Tally()
        self._session: aiohttp.ClientSession

    async def run(self, numbers: range, concurrency: int) -> None:
        rest = iter(numbers)
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as self._session:
            await asyncio.gather(*[self._work(rest) for _ in range(concurrency)])

    async def _work(self, rest: Any) -> None:
        for number in rest:
            chance = random.Random(number)
            kind = chance.choice(_KINDS)
            count = int(chance.triangular(1, self._most_tokens, 8))
            prompt = f"{number} " + " ".join(chance.choices(_WORDS, k=chance.randint(1, 12)))
            try:
                await self._ask(kind, number, prompt, count, chance.random())
            except (aiohttp.ClientError, asyncio.TimeoutError, ValueError, KeyError) as exc:
                self.tally.check(kind, number, False, f"{type(exc).__name__}: {exc}")

    async def _ask(self, kind: str, number: int, prompt: str, count: int, part: float) -> None:
        expected = self._expected(prompt, count)
        self.tally.tokens += count
        if kind == "cog cancel":
            await self._cancel(kind, number, prompt, count, part)
            return
        url = self._cog_url if kind.startswith("cog") else self._openai_url
        body: dict[str, Any] = {"input": {"prompt": prompt, "max_tokens": count, "seed": number}}
        headers = {}
        is_stream = kind.endswith(("stream", "hang-up"))
        if kind.startswith("openai"):
            body = {"model": _MODEL, **body["input"], "stream": is_stream}
        elif is_stream:
            headers["Accept"] = "text/event-stream"
        enough = int(len(expected) * part) if kind.endswith("hang-up") else None
        while True:
            async with self._session.post(url, json=body, headers=headers) as response:
                if response.status in _REFUSED:
                    self.tally.ends[f"{kind}: refused {response.status}, sent again"] += 1
                else:
                    text = await _text(response, is_stream, enough)
                    if enough is not None and len(text) < len(expected):
                        self.tally.check(kind, number, expected.startswith(text), text)
                    else:
                        self.tally.check(kind, number, text == expected, text)
                    return
            await asyncio.sleep(0.05)

    async def _cancel(self, kind: str, number: int, prompt: str, count: int, part: float) -> None:
        url = f"{self._cog_url}/soak-{number}"
        body = {"input": {"prompt": prompt, "max_tokens": 50 * count}}
        async with self._session.put(url, json=body, headers={"Prefer": "respond-async"}) as response:
            if response.status in _REFUSED:
                self.tally.ends[f"{kind}: refused {response.status}"] += 1
                return
            response.raise_for_status()
        await asyncio.sleep(part / 50)
        async with self._session.post(f"{url}/cancel") as response:
            # 404: it has ended already.
            self.tally.check(kind, number, response.status in (200, 404), str(response.status))

    def _expected(self, prompt: str, count: int) -> str:
        ids = self._tokenizer.encode(prompt).ids
        text: str = self._tokenizer.decode(list(islice(cycle(ids), count)), skip_special_tokens=True)
        return text


async def _text(response: aiohttp.ClientResponse, is_stream: bool, enough: int | None) -> str:
    """The text of an answer; of a stream as much as is ``enough``."""
    if not response.ok:
        raise ValueError(f"{response.status}: {await response.text()}")
    if not is_stream:
        document = await response.json()
        return str(document["choices"][0]["text"]) if "choices" in document else "".join(document["output"])
    text = ""
    event = ""
    async for raw in response.content:
        line = raw.decode().rstrip("\r\n")
        if line.startswith("event:"):
            event = line[6:].strip()
        elif line.startswith("data:") and line[5:].strip() != "[DONE]":
            text += _piece(event, json.loads(line[5:]))
            if enough is not None and len(text) > enough:
                response.close()
                break
    return text


def _piece(event: str, data: Any) -> str:
    if "choices" in data:
        return "".join(choice.get("text") or "" for choice in data["choices"])
    if event == "output":
        return str(data["chunk"] if isinstance(data, dict) and "chunk" in data else data)
    return ""


def _report(
    before: Resources,
    after: Resources,
    tally: Tally,
    seconds: float,
    metrics_port: int,
    judges_resources: bool,
) -> bool:
    asked = sum(count for end, count in tally.ends.items() if "sent again" not in end)
    print(f"\n{asked} requests in {seconds:.0f} s, {asked / seconds:.0f} a second")
    for end, count in sorted(tally.ends.items()):
        print(f"  {end:<40} {count:>8}")
    for line in tally.wrong[:20]:
        print(f"  {line}")
    is_settled = settle(metrics_port, _SETTLE_S)
    print(f"  slots leaked: {0 if is_settled else 'SOME'}")
    broken = after.compare(before)
    return not tally.wrong and is_settled and not (broken and judges_resources)


async def _run_parts(soak: Soak, numbers: range, concurrency: int, session: int) -> None:
    """With the memory of all processes after each part of the requests, while it is warm."""
    for part in range(_PARTS):
        start, stop = (len(numbers) * each // _PARTS for each in (part, part + 1))
        await soak.run(numbers[start:stop], concurrency)
        memory_bytes = measure(session).memory_bytes.total()
        print(f"{numbers.start + stop:>8} requests: {memory_bytes / 2**20:.1f} MiB", flush=True)


async def _main(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        folder = Path(name)
        engine = paced_engine(folder, 0)
        openai_port, metrics_port = free_ports(2)
        extra = {
            "ENGINE_DIR": str(engine),
            "COG_WEIGHTS": "",
            "OPENAI_PORT": str(openai_port),
            "OPENAI_MODELS": _MODEL,
            "TRITON_METRICS_PORT": str(metrics_port),
        }
        with starting_stack(folder, extra) as server:
            server.wait_ready(_READY_TIMEOUT_S)
            tokenizer = Tokenizer.from_file(str(engine / "tokenizer.json"))
            soak = Soak(server.url, f"http://{HOST}:{openai_port}", tokenizer, options.most_tokens)
            warm = int(options.requests * _WARM_UP)
            start_s = time.monotonic()
            await _run_parts(soak, range(warm), options.concurrency, server.pid)
            await asyncio.sleep(_IDLE_S)
            before = measure(server.pid)
            await _run_parts(soak, range(warm, options.requests), options.concurrency, server.pid)
            seconds = time.monotonic() - start_s
            await asyncio.sleep(_IDLE_S)
            after = measure(server.pid)
            is_kept = _report(before, after, soak.tally, seconds, metrics_port, not options.short)
        print("all promises kept" if is_kept else "BROKEN")
        return 0 if is_kept else 1


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--requests", type=int, default=100_000, help="how many (default %(default)s)")
    parser.add_argument("--concurrency", type=int, default=64, help="at once (default %(default)s)")
    parser.add_argument("--most-tokens", type=int, default=400, help="of an answer (default %(default)s)")
    parser.add_argument("--short", action="store_true", help="too few requests to judge memory and files by")
    return asyncio.run(_main(parser.parse_args()))


if __name__ == "__main__":
    run_program(main)
