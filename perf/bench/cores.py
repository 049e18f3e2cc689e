"""Put the same loads on each layer, with the servers on 1, 2, 4, ... processors: how does each layer scale?

The load generator has the other processors; where none is left, it shares all of them with the servers.
The API server has one process per two processors.
"""

import os
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from engine.machine.description import machine
from errors.requests import InvalidInput
from perf.bench.effort import PACE
from perf.bench.measure import Measurement, batches, cog_target, measure, openai_target, workload
from perf.engines import paced_engine
from perf.load.plan import Plan
from perf.load.targets.target import Target, Workload
from perf.load.targets.triton import TritonTarget
from perf.options import Options
from perf.servers import Stack, whole_stack
from perf.table import table
from runner.triton_server.model_names import SLOT

_INPUT_TOKENS = 32
_STARTING = 128
"""Requests at once."""
_PEAK_STREAMS, _PEAK_TOKENS = 256, 256
_WARM_UP = Plan("concurrency", _STARTING, 0.5)


class Load(NamedTuple):
    """What is sent to each layer. ``engine_pace`` is in tokens/s per stream; 0: as fast as it can."""

    engine_pace: float
    work: Workload
    plan: Plan


Found = Mapping[tuple[str, int], Mapping[str, Measurement]]
"""By layer and number of processors: the measurement of each load."""


def loads(streams: int, tokens: int, seconds: float) -> dict[str, Load]:
    starts, peak, paced = (workload(_INPUT_TOKENS, each) for each in (1, _PEAK_TOKENS, tokens))
    return {
        "starts": Load(0, starts, Plan("concurrency", _STARTING, seconds)),
        "unpaced": Load(0, peak, Plan("concurrency", _PEAK_STREAMS, seconds)),
        "paced": Load(PACE, paced, batches(streams, tokens / PACE, 1)),
    }


def measure_cores(counts: Iterable[int], clients: int, sent: Mapping[str, Load], folder: Path) -> Found:
    """Both engines on each number of processors, one stack after another."""
    engines = {pace: paced_engine(folder, pace) for pace in {load.engine_pace for load in sent.values()}}
    available = sorted(os.sched_getaffinity(0))
    found: defaultdict[tuple[str, int], dict[str, Measurement]] = defaultdict(dict)
    for count in counts:
        servers, generator = available[:count], available[count:] or available
        api_processes = max(count // 2, 1)
        for pace, engine in engines.items():
            settings = {"ENGINE_DIR": str(engine), "OPENAI_PROCESSES": str(api_processes)}
            with (
                on_processors(servers),
                whole_stack(folder, settings, has_api=True) as stack,
                on_processors(generator),
            ):
                mine = {name: load for name, load in sent.items() if load.engine_pace == pace}
                for layer, target_for in _layers(stack).items():
                    measure(stack, target_for(workload(_INPUT_TOKENS, 1)), _WARM_UP, clients)
                    for name, load in mine.items():
                        each = measure(stack, target_for(load.work), load.plan, clients)
                        found[layer, count][name] = each
                        _tell(count, layer, name, each)
    return found


@contextmanager
def on_processors(chosen: Iterable[int]) -> Iterator[None]:
    """This thread, and the processes that it starts meanwhile, run on these processors alone."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, chosen)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def _layers(stack: Stack) -> dict[str, Callable[[Workload], Target]]:
    return {
        "slot, Triton itself": partial(TritonTarget, stack.triton_itself_url, SLOT),
        "slot, port 8000": partial(TritonTarget, stack.triton_url, SLOT),
        "Cog, JSON": partial(cog_target, stack, is_streaming=False),
        "Cog, events": partial(cog_target, stack, is_streaming=True),
        "API server, events": partial(openai_target, stack, is_streaming=True),
    }


def _tell(count: int, layer: str, load: str, found: Measurement) -> None:
    busiest = ", ".join(f"{role} {share:.2f}" for role, share in _busiest(found, 4))
    print(
        f"{count} processors, {layer}, {load}: {found.summary.requests_per_second:,.0f} requests/s, "
        f"{found.summary.tokens_per_second:,.0f} tokens/s; {busiest}",
        file=sys.stderr,
        flush=True,
    )


def _busiest(found: Measurement, roles: int) -> list[tuple[str, float]]:
    """Processors that the processes of each role kept busy, the busiest first."""
    return [(role, cpu_s / (found.run.duration_s or 1)) for role, cpu_s in found.cpu_s.most_common(roles)]


def cores_table(found: Found) -> str:
    """Rates and CPU of each layer by number of processors, and the busiest process of each load."""
    head = ["layer", "processors", "starts/s", "CPU ms each", "unpaced tokens/s", "CPU s per 1,000"]
    head += ["paced tokens/s each", "gap p50/p99 ms", "CPU s per 1,000", "clients busy", "not served"]
    layers = list(dict.fromkeys(layer for layer, _ in found))
    order = sorted(found, key=lambda key: (layers.index(key[0]), key[1]))
    busiest = [
        [layer, str(count), *(_role(each) for each in found[layer, count].values())] for layer, count in order
    ]
    loads_head = ["busiest process, processors", "of", *next(iter(found.values()))]
    figures = [[layer, str(count), *_figures(found[layer, count])] for layer, count in order]
    return f"{table(head, figures)}\n\n{table(loads_head, busiest)}"


def _figures(found: Mapping[str, Measurement]) -> list[str]:
    starts, peak, paced = (found[load] for load in ("starts", "unpaced", "paced"))
    gap_s = paced.summary.gap_s
    return [
        f"{starts.summary.requests_per_second:,.0f}",
        f"{starts.cpu_s.total() * 1000 / (starts.summary.completed or 1):.2f}",
        f"{peak.summary.tokens_per_second:,.0f}",
        f"{peak.cpu_s_per_1000_tokens():.4f}",
        f"{paced.tokens_per_second_per_stream:.1f}",
        "-" if gap_s is None else f"{gap_s.p50 * 1000:.1f}/{gap_s.p99 * 1000:.1f}",
        f"{paced.cpu_s_per_1000_tokens():.4f}",
        f"{max(_clients_busy(each) for each in found.values()):.2f}",
        str(sum(each.not_served for each in found.values())),
    ]


def _clients_busy(found: Measurement) -> float:
    """Mean share of a client process's time; near 1 the load generator is the limit."""
    return found.run.client_cpu_s / found.run.processes / (found.run.duration_s or 1)


def _role(found: Measurement) -> str:
    return " ".join(f"{role} {share:.2f}" for role, share in _busiest(found, 1))


def main(arguments: Sequence[str] | None = None) -> int:
    most = len(os.sched_getaffinity(0))
    parser = Options("cores", __doc__)
    powers = [1 << exponent for exponent in range(most.bit_length())]
    parser.add_argument("counts", type=int, nargs="*", default=powers, help="processors of the servers")
    parser.add_argument("--clients", type=int, default=max(most // 2, 1), help="client processes")
    parser.add_argument("--streams", type=int, default=512, help="paced requests at once")
    parser.add_argument("--n_output_tokens", type=int, default=192, help="of each paced request")
    parser.add_argument("--seconds", type=float, default=3.0, help="of each load that is not paced")
    options = parser.parse_args(arguments)
    for count in options.counts:
        if not 0 < count <= most:
            raise InvalidInput(name="counts", expected=f"from 1 to {most}", value=count)
    sent = loads(options.streams, options.n_output_tokens, options.seconds)
    with tempfile.TemporaryDirectory(prefix="cog-triton-bench-") as name:
        found = measure_cores(options.counts, options.clients, sent, Path(name))
    paced = f"{options.streams} paced streams of {options.n_output_tokens} tokens at {PACE:g}/s"
    print(f"{machine()}; {options.clients} client processes; {paced}\n\n{cores_table(found)}")
    return 0
