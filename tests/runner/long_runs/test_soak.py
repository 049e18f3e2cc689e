"""Very many requests to the whole stack, each answer compared with what its own prompt gives.

No two prompts are alike, so a lost, doubled or mixed-up token is found. Requests go to every API, as JSON and
as streams; some clients disconnect in the middle, some predictions are cancelled, and a refused client tries
again. SOAK_REQUESTS (such as 100000) makes it long: then memory, files and threads may not grow either.
"""

import asyncio
import os
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from perf.engines import paced_engine
from perf.servers import Stack, whole_stack
from tests.runner.long_runs.known_streams import APIS, COG, OPENAI, TRITON_APIS, WHOLE_APIS, KnownStreams
from tests.runner.long_runs.resources import grown, is_busy, measure, settle

REQUESTS = int(os.environ.get("SOAK_REQUESTS", "600"))
_IS_LONG = REQUESTS >= 20_000
"""Enough to judge memory by."""
_CONCURRENCY, _PLACES = 80, 8
"""Ten times as many clients as places."""
_WARM_UP = 0.3
"""Share of the requests in which memory rises, by each tokenizer's cache of 10,000 words among others."""
_MOST_TOKENS = 400
_IDLE_S = 12.0
"""Tokio keeps a thread that has nothing to do for 10 s."""
_CANCEL = "cancel"
_KINDS = (*(*APIS, *WHOLE_APIS) * 4, *TRITON_APIS, f"{COG} hang-up", f"{OPENAI} hang-up", _CANCEL)
_WORDS = (
    "water fire steam earth plant human robe judge cow steak",
    "machine learning once upon a time",
)
"""Pieces of prompts."""

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600 + REQUESTS)]


class Soak:
    """Requests by number: each one's prompt, length and kind follow from it alone."""

    def __init__(self, stack: Stack, engine: Path) -> None:
        self._stack = stack
        self._engine = engine
        self.ends: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def run(self, numbers: range) -> None:
        rest = iter(numbers)
        known = KnownStreams(self._stack, self._engine)
        async with httpx.AsyncClient(base_url=self._stack.server.url, timeout=120) as client:
            await asyncio.gather(*[self._work(rest, known, client) for _ in range(_CONCURRENCY)])
        known.close()

    async def _work(self, rest: Iterator[int], known: KnownStreams, client: httpx.AsyncClient) -> None:
        for number in rest:
            chance = random.Random(number)
            kind = chance.choice(_KINDS)
            count = int(chance.triangular(1, _MOST_TOKENS, 8))
            prompt = f"{number} " + " ".join(chance.choices(_WORDS, k=chance.randint(1, 12)))
            if kind == _CANCEL:
                status = await _cancel(client, number, prompt, 50 * count, chance.random())
                end, is_right = str(status), status in (200, 404, 409)
            elif kind.endswith("hang-up"):
                request = known.request(kind.removesuffix(" hang-up"), prompt, 50 * count)
                try:
                    await asyncio.wait_for(request, chance.random() / 50)
                except asyncio.TimeoutError:
                    pass
                end, is_right = "", True
            else:
                found = await known.request(kind, prompt, count)
                while is_busy(found.error):
                    self.ends[f"{kind}: refused, sent again"] += 1
                    await asyncio.sleep(0.05)
                    found = await known.request(kind, prompt, count)
                end, is_right = found.error, found.is_exact and not found.error
            self.ends[f"{kind}: {end or 'right'}"] += 1
            if not is_right:
                self.wrong.append(f"request {number} ({kind}): {end or 'wrong text'}")


async def _cancel(client: httpx.AsyncClient, number: int, prompt: str, count: int, part: float) -> int:
    """Return the status of the cancellation (404: the prediction had ended), or 409 for no place."""
    path, body = f"/predictions/soak-{number}", {"input": {"prompt": prompt, "max_tokens": count}}
    response = await client.put(path, json=body, headers={"Prefer": "respond-async"})
    if response.status_code != 202:
        return response.status_code
    await asyncio.sleep(part / 50)
    return (await client.post(f"{path}/cancel")).status_code


async def test_every_answer_is_that_of_its_own_prompt_and_nothing_is_left(tmp_path: Path) -> None:
    engine = paced_engine(tmp_path, 0)
    settings = dict.fromkeys(("COG_MAX_CONCURRENCY", "OPENAI_MAX_REQUESTS"), str(_PLACES))
    with whole_stack(tmp_path, {"ENGINE_DIR": str(engine), **settings}) as stack:
        soak, warm = Soak(stack, engine), int(REQUESTS * _WARM_UP)
        await soak.run(range(warm))
        await asyncio.sleep(_IDLE_S * _IS_LONG)
        before = measure(stack.session)
        await soak.run(range(warm, REQUESTS))
        settle(stack.metrics_url)
        await asyncio.sleep(_IDLE_S * _IS_LONG)
        after = measure(stack.session)
    print(*sorted(soak.ends.items()), sep="\n")
    assert soak.wrong == []
    assert not _IS_LONG or grown(before, after) == []
