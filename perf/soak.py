"""Very many requests to the whole stack, each answer compared with what its own prompt gives.

    python -m perf soak --requests 100000

Starts the runner on a paced engine, whose output is a function of the prompt. No two prompts are alike, so a
lost, doubled or mixed-up token is found. Requests go to Cog and to the OpenAI-compatible API, as JSON and as
streams; some are cancelled, some clients disconnect in the middle, and a refused client tries again. At the
end no slot may be taken, there may be no more files, threads or shared memory than after the warm-up, and at
most 2 % more memory. Exit status 1 if not.
"""

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
from tokenizers import Tokenizer

from perf.engines import paced_engine
from perf.known_streams import piece, repeated_text
from perf.options import Options
from perf.resources import measure, settle
from perf.servers import MODEL, Stack, whole_stack

_KINDS = (
    *("cog", "cog stream", "openai", "openai stream") * 4,
    *("cog hang-up", "openai hang-up", "cog cancel"),
)
_WARM_UP = 0.3
"""Of the requests: until then memory rises, by each tokenizer's cache of 10,000 words among others."""
_PARTS = 10
_MOST_TOKENS = 400
_SETTLE_S = 10.0
_IDLE_S = 12.0
"""Tokio keeps a thread that has nothing to do for 10 s."""
_WORDS = (
    "water fire steam earth plant human robe judge cow steak",
    "machine learning once upon a time",
)
"""Pieces of prompts."""


class Soak:
    """Requests by number: each one's prompt, length and kind follow from it alone."""

    def __init__(self, stack: Stack, tokenizer: Tokenizer, concurrency: int) -> None:
        self._stack = stack
        self._tokenizer = tokenizer
        self._concurrency = concurrency
        self.ends: Counter[str] = Counter()
        """Requests by kind and by how they ended."""
        self.wrong: list[str] = []
        self._session: aiohttp.ClientSession

    async def run(self, numbers: range) -> None:
        """Print the memory of all processes after each part of the requests, while it is warm."""
        connector = aiohttp.TCPConnector(limit=0)
        timeout = aiohttp.ClientTimeout(total=120)
        async with aiohttp.ClientSession(connector=connector, timeout=timeout) as self._session:
            for part in range(_PARTS):
                start, stop = (len(numbers) * each // _PARTS for each in (part, part + 1))
                rest = iter(numbers[start:stop])
                await asyncio.gather(*[self._work(rest) for _ in range(self._concurrency)])
                memory_mib = measure(self._stack.session).memory_bytes.total() / 2**20
                print(f"{numbers.start + stop:>8} requests: {memory_mib:.1f} MiB", flush=True)

    async def _work(self, rest: Iterator[int]) -> None:
        for number in rest:
            chance = random.Random(number)
            kind = chance.choice(_KINDS)
            count = int(chance.triangular(1, _MOST_TOKENS, 8))
            prompt = f"{number} " + " ".join(chance.choices(_WORDS, k=chance.randint(1, 12)))
            send = self._cancel if kind == "cog cancel" else self._send
            try:
                await send(kind, number, prompt, count, chance.random())
            except (aiohttp.ClientError, asyncio.TimeoutError, ValueError, KeyError) as exc:
                self._check(kind, number, False, f"{type(exc).__name__}: {exc}")

    async def _send(self, kind: str, number: int, prompt: str, count: int, part: float) -> None:
        expected = repeated_text(self._tokenizer, prompt, count)
        is_stream = kind.endswith(("stream", "hang-up"))
        inputs = {"prompt": prompt, "max_tokens": count, "seed": number}
        headers = {"Accept": "text/event-stream"} if is_stream else {}
        body: dict[str, Any] = {"input": inputs}
        url, refused = f"{self._stack.server.url}/predictions", 409
        if kind.startswith("openai"):
            url, refused = f"{self._stack.openai_url}/v1/completions", 429
            body = {"model": MODEL, **inputs, "stream": is_stream}
        enough = int(len(expected) * part) if kind.endswith("hang-up") else None
        while True:
            async with self._session.post(url, json=body, headers=headers) as response:
                if response.status != refused:
                    text = await _text_of(response, enough)
                    is_cut = enough is not None and len(text) < len(expected)
                    is_right = expected.startswith(text) if is_cut else text == expected
                    self._check(kind, number, is_right, text)
                    return
                self.ends[f"{kind}: refused {response.status}, sent again"] += 1
            await asyncio.sleep(0.05)

    async def _cancel(self, kind: str, number: int, prompt: str, count: int, part: float) -> None:
        body = {"input": {"prompt": prompt, "max_tokens": 50 * count}}
        url = f"{self._stack.server.url}/predictions/soak-{number}"
        async with self._session.put(url, json=body, headers={"Prefer": "respond-async"}) as response:
            if response.status == 409:
                self.ends[f"{kind}: refused {response.status}"] += 1
                return
            response.raise_for_status()
        await asyncio.sleep(part / 50)
        async with self._session.post(f"{url}/cancel") as response:
            # 404: it has ended already.
            self._check(kind, number, response.status in (200, 404), str(response.status))

    def _check(self, kind: str, number: int, is_right: bool, got: str) -> None:
        self.ends[f"{kind}: {'right' if is_right else 'WRONG'}"] += 1
        if not is_right:
            self.wrong.append(f"request {number} ({kind}): {got[:200]!r}")


async def _text_of(response: aiohttp.ClientResponse, enough: int | None = None) -> str:
    """The text of an answer; of a stream until it is longer than ``enough``. Raises ValueError."""
    if not response.ok:
        raise ValueError(f"{response.status}: {await response.text()}")
    if not response.content_type.startswith("text/event-stream"):
        document = await response.json()
        return str(document["choices"][0]["text"]) if "choices" in document else "".join(document["output"])
    text = ""
    async for raw in response.content:
        line = raw.decode().strip()
        if line.startswith("data:") and line[5:].strip() != "[DONE]":
            data = json.loads(line[5:])
            if data.get("error"):
                raise ValueError(f"an error in the stream: {data['error']}")
            text += piece(data)
            if enough is not None and len(text) > enough:
                response.close()
                break
    return text


async def _soak(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="soak-") as name:
        engine = paced_engine(Path(name), 0)
        settings = {"ENGINE_DIR": str(engine)}
        if options.places:
            settings |= dict.fromkeys(("COG_MAX_CONCURRENCY", "OPENAI_MAX_REQUESTS"), str(options.places))
        with whole_stack(Path(name), settings, has_api=True) as stack:
            tokenizer = Tokenizer.from_file(str(engine / "tokenizer.json"))
            soak = Soak(stack, tokenizer, options.concurrency)
            warm = int(options.requests * _WARM_UP)
            start_s = time.monotonic()
            await soak.run(range(warm))
            await asyncio.sleep(_IDLE_S)
            before = measure(stack.session)
            await soak.run(range(warm, options.requests))
            seconds = time.monotonic() - start_s
            await asyncio.sleep(_IDLE_S)
            after = measure(stack.session)
            is_settled = settle(stack.metrics_url, _SETTLE_S)
    sent = sum(count for end, count in soak.ends.items() if "sent again" not in end)
    print(f"\n{sent} requests in {seconds:.0f} s, {sent / seconds:.0f} a second")
    for end, count in sorted(soak.ends.items()):
        print(f"  {end:<40} {count:>8}")
    for line in soak.wrong[:20]:
        print(f"  {line}")
    print(f"  slots leaked: {0 if is_settled else 'SOME'}")
    has_grown = after.compare(before)
    is_kept = not soak.wrong and is_settled and (options.short or not has_grown)
    print("all promises kept" if is_kept else "BROKEN")
    return 0 if is_kept else 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Options("soak", __doc__)
    parser.add_argument("--requests", type=int, default=100_000, help="how many")
    parser.add_argument("--concurrency", type=int, default=64, help="requests at once")
    parser.add_argument("--places", type=int, help="of each API (default: enough); more requests are refused")
    parser.add_argument("--short", action="store_true", help="too few requests to judge memory and files by")
    return asyncio.run(_soak(parser.parse_args(arguments)))
