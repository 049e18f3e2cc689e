"""Rows about throughput and processor time: peak, starts, long streams, an engine.tar of small files."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

from perf.bench.effort import FAST_PACE, INPUT_TOKENS, PACE, SOME_TOKENS, Effort
from perf.bench.floor import floor, record
from perf.bench.measure import (
    batches,
    cog_target,
    measure,
    measure_cog,
    measure_in_turns,
    mock_target,
    openai_target,
    workload,
)
from perf.bench.row import Row, absolute, ratio
from perf.bench.transfer import make_tar, measure_transfer
from perf.load.generator import run
from perf.load.plan import Plan
from perf.load.summary import summarize
from perf.load.targets.openai import OpenAITarget
from perf.processes import API_SERVER
from perf.servers import MODEL, Stack

_PEAK_STREAMS, _PEAK_TOKENS = 256, 256
_PACED_STREAMS = 64
"""Number of streams; with more, a slow machine merges events."""
_STARTING = 64
"""Number of concurrent requests."""
_MOCK_PACE = 1e5
_MANY_TOKENS, _LONG_STREAMS = 8192, 8
_SMALL_FILES, _SMALL_FILE_BYTES = 8192, 64 << 10
_MEMORY_FOLDER = Path("/dev/shm")  # noqa: S108


def peak_rows(stack: Stack, effort: Effort) -> Iterator[Row]:
    plan = Plan("concurrency", _PEAK_STREAMS, effort.seconds)
    load = f"unpaced, {_PEAK_STREAMS} streams x {_PEAK_TOKENS} tokens"
    api = measure(stack, openai_target(stack, workload(INPUT_TOKENS, _PEAK_TOKENS)), plan)
    cog = measure_cog(stack, _PEAK_TOKENS, plan)
    for name, found, limit in (("API server", api, None), ("Cog", cog, 400_000.0)):
        what, rate = f"peak tokens/s, {load}: {name}", found.summary.tokens_per_second
        yield absolute(what, rate, limit, not_served=found.not_served, decimals=0)


def floor_row(stack: Stack, effort: Effort) -> Row:
    """Compare CPU with the floor's: the engine sets the pace, so both write the same at the same times."""
    work = workload(INPUT_TOKENS, SOME_TOKENS)
    target = openai_target(stack, work)
    plan = batches(_PACED_STREAMS, SOME_TOKENS / PACE, effort.batches)
    with floor(record(target.request)) as lowest:
        before_s = lowest.cpu_s()
        summary = summarize(run(plan, OpenAITarget(lowest.url, "completions", MODEL, work)))
        floor_s = (lowest.cpu_s() - before_s) * 1000 / (summary.output_tokens or 1)
    ours = measure(stack, target, plan)
    front_s, api_s = ours.cpu_s_per_1000_tokens(), ours.cpu_s_per_1000_tokens(API_SERVER)
    figures = f"{floor_s:.3f} / {front_s:.3f} s per 1,000, of which {api_s:.3f} its own process"
    what = f"CPU per token, {_PACED_STREAMS} streams at {PACE:g} tokens/s: floor / API server ({figures})"
    not_served = ours.not_served + summary.requests - summary.completed
    return ratio(what, floor_s, front_s, at_least=0.5, not_served=not_served)


def start_rows(stack: Stack, mock: Stack, effort: Effort) -> Iterator[Row]:
    work = workload(INPUT_TOKENS, 1)
    alone, cog, api = measure_in_turns(
        Plan("concurrency", _STARTING, effort.seconds),
        2,
        (mock, mock_target(mock, work, tokens_per_second=_MOCK_PACE, is_streaming=False)),
        (stack, cog_target(stack, work, is_streaming=False)),
        (stack, openai_target(stack, work, is_streaming=False)),
    )
    by_cog, by_mock, by_api = (each.summary.requests_per_second for each in (cog, alone, api))
    what = f"starts per second: Cog / Cog with a mock ({by_cog:,.0f} / {by_mock:,.0f})"
    yield ratio(what, by_cog, by_mock, at_least=0.9, not_served=cog.not_served + alone.not_served)
    what = "starts per second: API server"
    yield absolute(what, by_api, 1500, not_served=api.not_served, decimals=0)


def long_rows(stack: Stack, effort: Effort) -> Iterator[Row]:
    short = measure_cog(stack, SOME_TOKENS, Plan("concurrency", _LONG_STREAMS, max(effort.seconds, 4.0)))
    long = measure_cog(stack, _MANY_TOKENS, batches(_LONG_STREAMS, _MANY_TOKENS / FAST_PACE, effort.batches))
    not_served = short.not_served + long.not_served
    per_token = [each.cpu_s_per_1000_tokens() for each in (long, short)]
    what = f"CPU per token at {_MANY_TOKENS:,} output tokens / at {SOME_TOKENS}"
    yield Row(what, per_token[0] / (per_token[1] or 1), 1.0, "", False, not_served, 2)
    what = f"memory after {_MANY_TOKENS:,} tokens over after {SOME_TOKENS}"
    yield Row(what, (long.memory_bytes - short.memory_bytes) / (1 << 20), 32.0, " MiB", False, not_served)


def transfer_row(effort: Effort) -> Row:
    with tempfile.TemporaryDirectory(prefix="cog-triton-bench-", dir=_MEMORY_FOLDER) as name:
        tar = make_tar(Path(name), _SMALL_FILE_BYTES, _SMALL_FILES)
        curl_s, our_s = measure_transfer(tar, Path(name), max(effort.batches, 2))
    seconds = f"{curl_s:.2f} / {our_s:.2f} s"
    what = f"speed of an engine.tar of {_SMALL_FILES:,} small files, / curl and tar x ({seconds})"
    return ratio(what, curl_s, our_s, at_least=0.9)
