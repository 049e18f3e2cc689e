"""Hostile traffic of all kinds on every port, beside paced streams whose text is known.

No text may be wrong, no process may end, every request is freed, every error has a code and no traceback.
HOSTILE_SECONDS (such as 3600) makes it long.
"""

import asyncio
import itertools
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from perf.engines import paced_engine
from perf.processes import RENDERER, processes
from perf.servers import Stack, whole_stack
from tests.attacks.traffic import ATTACKS, Traffic, send_traffic
from tests.runner.long_runs.known_streams import APIS, TRITON_APIS, KnownStreams
from tests.runner.long_runs.resources import is_busy, settle

SECONDS = float(os.environ.get("HOSTILE_SECONDS", "10"))
_STREAMS, _WORKERS = 12, 4
_TOKENS_PER_SECOND = 25
_FEWEST_TOKENS, _MOST_TOKENS = 50, 250
_RETRY_S = 1.0

pytestmark = [pytest.mark.servers, pytest.mark.timeout(600 + SECONDS)]


async def _streams(known: KnownStreams, stopped: asyncio.Event) -> list[str]:
    """Stream by all APIs, one stream after another, until it is stopped. Returns what was wrong."""
    numbers = itertools.count()
    wrong = []

    async def client(api: str) -> None:
        while not stopped.is_set():
            number = next(numbers)
            num_tokens = _FEWEST_TOKENS + number * 37 % (_MOST_TOKENS - _FEWEST_TOKENS)
            found = await known.request(api, f"{number} Once upon a time", num_tokens)
            if found.error or not found.is_exact:
                wrong.extend([] if is_busy(found.error) else [str(found)])
                await asyncio.sleep(_RETRY_S)

    await asyncio.gather(*map(client, itertools.islice(itertools.cycle((*APIS, *TRITON_APIS)), _STREAMS)))
    return wrong


async def _attack(stack: Stack, engine: Path, log: Path) -> tuple[list[str], Traffic]:
    known, stopped = KnownStreams(stack, engine), asyncio.Event()
    running = asyncio.create_task(_streams(known, stopped))
    urls = {"cog": stack.server.url, "api": stack.openai_url, "http": stack.triton_url}
    urls |= {"grpc": f"http://{stack.triton_grpc}", "metrics": stack.metrics_url}
    ports = {name: urlsplit(url).port or 0 for name, url in urls.items()}
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        attacks = (ports, SECONDS, _WORKERS, 0, list(ATTACKS), log)
        traffic = await asyncio.get_running_loop().run_in_executor(pool, send_traffic, *attacks)
    stopped.set()
    wrong = await running
    known.close()
    return wrong, traffic


def test_hostile_traffic_on_every_port_harms_nobody_elses_stream(tmp_path: Path) -> None:
    engine = paced_engine(tmp_path, _TOKENS_PER_SECOND)
    with whole_stack(tmp_path, {"ENGINE_DIR": str(engine)}) as stack:
        roles = {each.folder: each.role for each in processes(stack.session)}
        wrong, traffic = asyncio.run(_attack(stack, engine, tmp_path / "traffic.log"))
        ended = [role for folder, role in roles.items() if role != RENDERER and not folder.exists()]
        if not ended:
            settle(stack.metrics_url)
    print(*((kind, dict(found)) for kind, found in traffic.answers.items()), sep="\n")
    assert wrong + traffic.wrong + ended == []
    assert "Traceback (most recent call last)" not in (tmp_path / "runner.log").read_text(errors="replace")
