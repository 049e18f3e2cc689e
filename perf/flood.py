"""Ten times more clients than places, idle clients and clients that read nothing, for minutes.

    python -m perf flood --seconds 180

Starts the runner on a paced engine, with as many places in Cog as in the OpenAI-compatible API, and ten times
as many clients. A refused client tries again a second later. Prints how requests ended, the pace of accepted
streams beside that of a calm time before, memory, and how long the server takes to serve again. Exit status 1
if a promise was broken.
"""

from __future__ import annotations

import argparse
import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from perf.bench.measure import cog_target, openai_target, workload
from perf.engines import paced_engine
from perf.load.generator import run_together
from perf.load.plan import Plan
from perf.load.record import Record
from perf.load.statistics import percentile
from perf.load.targets.target import Posting
from perf.options import Options
from perf.resources import measure, settle
from perf.servers import Stack, whole_stack

_OVERLOAD = 10
_TOKENS_PER_SECOND = 50
_TOKENS = 100
_ENDLESS_TOKENS = 10_000
_RETRY_S = 1.0
_CALM_STREAMS = 16
_CALM_S = 3.0
_RECOVERY_S = 10.0
_MOST_GROWTH_BYTES = 512 << 20
_REFUSED = {"cog": "HTTP 409", "openai": "HTTP 429"}
"""The only error that an API may answer with."""

Records = dict[str, list[Record]]


def _targets(stack: Stack, tokens: int) -> dict[str, Posting]:
    work = workload(10, tokens)
    return {"cog": cog_target(stack, work, is_streaming=True), "openai": openai_target(stack, work)}


async def _load(stack: Stack, streams: int, seconds: float) -> Records:
    """So many clients of each API that send one request after another."""
    plan = Plan("concurrency", streams, seconds, retry_s=_RETRY_S)
    targets = _targets(stack, _TOKENS)
    found = await run_together([(plan, target) for target in targets.values()])
    return dict(zip(targets, found, strict=True))


@asynccontextmanager
async def _silent(targets: Iterable[Posting], idle: int, deaf: int) -> AsyncIterator[None]:
    """Clients of each API that only connect, and clients that request a long stream and read nothing."""
    writers = []
    for target in targets:
        origin = target.request.origin
        for index in range(idle + deaf):
            _, writer = await asyncio.open_connection(origin.host, origin.port, limit=1)
            if index >= idle:
                writer.write(target.request.encoded)
            writers.append(writer)
    try:
        yield
    finally:
        for writer in writers:
            writer.transport.abort()


def _tell(name: str, found: Records) -> bool:
    """Print; whether only what is allowed happened."""
    is_right = True
    for api, records in found.items():
        paces = sorted(1 / each.inter_token_s for each in records if each.is_completed and each.inter_token_s)
        errors = [each.answer.error for each in records if not each.is_completed]
        broken = [error for error in errors if not error.startswith(_REFUSED[api])]
        median, worst = (percentile(paces or [0.0], share) for share in (0.5, 0.05))
        print(
            f"  {name:<6} {api:<7} streams {len(paces)}, {_REFUSED[api]} {len(errors) - len(broken)}, "
            f"tokens/s per stream: median {median:.1f}, 5th percentile {worst:.1f}"
        )
        for error in broken[:20]:
            print(f"    {error}")
        is_right &= bool(paces) and not broken
    return is_right


async def _memory_peak(session: int, peak: list[int]) -> None:
    while True:
        peak[0] = max(peak[0], measure(session).memory_bytes.total())
        await asyncio.sleep(1)


async def _recovery_s(stack: Stack) -> float:
    """Until a stream of each API is served again."""
    start_s = time.monotonic()
    while time.monotonic() - start_s < 6 * _RECOVERY_S:
        found = await _load(stack, 1, 0.01)
        if all(each.is_completed for records in found.values() for each in records):
            break
    return time.monotonic() - start_s - _TOKENS / _TOKENS_PER_SECOND


async def _flood(options: argparse.Namespace) -> int:
    with tempfile.TemporaryDirectory(prefix="flood-") as name:
        folder = Path(name)
        settings = {
            "ENGINE_DIR": str(paced_engine(folder, _TOKENS_PER_SECOND)),
            "COG_MAX_CONCURRENCY": str(options.places),
            "OPENAI_MAX_REQUESTS": str(options.places),
        }
        with whole_stack(folder, settings, has_api=True) as stack:
            is_right = _tell("calm", await _load(stack, min(_CALM_STREAMS, options.places), _CALM_S))
            before = measure(stack.session).memory_bytes.total()
            peak = [before]
            sampling = asyncio.create_task(_memory_peak(stack.session, peak))
            targets = _targets(stack, _ENDLESS_TOKENS).values()
            async with _silent(targets, options.idle // 2, options.deaf // 2):
                is_right &= _tell("flood", await _load(stack, _OVERLOAD * options.places, options.seconds))
            recovery_s = await _recovery_s(stack)
            sampling.cancel()
            growth = peak[0] - before
            print(f"  memory {before >> 20} MiB, at most {growth >> 20} MiB more in the flood")
            print(f"  a stream of each API was served again after {recovery_s:.1f} s")
            is_right &= settle(stack.metrics_url, _RECOVERY_S) and growth < _MOST_GROWTH_BYTES
            is_right &= recovery_s < _RECOVERY_S or options.short
        print("all promises kept" if is_right else "BROKEN")
        return 0 if is_right else 1


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Options("flood", __doc__)
    parser.add_argument("--places", type=int, default=64, help="of each API")
    parser.add_argument("--seconds", type=float, default=180, help="length of the flood")
    parser.add_argument("--idle", type=int, default=1960, help="clients that send nothing")
    parser.add_argument("--deaf", type=int, default=40, help="clients that read nothing")
    parser.add_argument("--short", action="store_true", help="do not judge the time of recovery")
    return asyncio.run(_flood(parser.parse_args(arguments)))
