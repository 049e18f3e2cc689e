"""Put the same load on each layer of the stack, in one run with the paced engine: which layer is slow?"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from engine.machine.description import machine
from perf.bench.measure import (
    GENERATOR,
    Measurement,
    batches,
    cog_target,
    ensemble_target,
    measure,
    mock_target,
    slot_target,
    workload,
)
from perf.engines import paced_engine
from perf.load.targets.target import Target, Workload
from perf.options import Options
from perf.processes import ROLES
from perf.servers import Stack, mock, whole_stack
from perf.table import table

SLOT_LAYER = "engine slot, Triton HTTP"
WHOLE_JSON = "whole stack, Cog JSON"
WHOLE_SSE = "whole stack, Cog SSE"
_WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Load:
    """``batches`` times ``streams`` requests at once, each of so many tokens, of an engine with this rate."""

    streams: int = 24
    output_tokens: int = 128
    input_tokens: int = 100
    tokens_per_second: float = 100.0
    batches: int = 3

    def __str__(self) -> str:
        return f"{self.streams} streams of {self.output_tokens} tokens at {self.tokens_per_second:g}/s"


def measure_layers(load: Load, report: Callable[[str], None]) -> list[Measurement]:
    """Each layer's measurement; ``report`` gets a line for each step."""
    with tempfile.TemporaryDirectory(prefix="cog-triton-bench-") as name:
        return list(_layers(load, Path(name), report))


def _layers(load: Load, folder: Path, report: Callable[[str], None]) -> Iterator[Measurement]:
    plan = batches(load.streams, load.output_tokens / load.tokens_per_second, load.batches)
    warm_up = batches(load.streams, _WARM_UP_TOKENS / load.tokens_per_second, 1)

    def one(stack: Stack, layer: str, target_for: Callable[[Workload], Target]) -> Measurement:
        report(f"measuring: {layer}")
        measure(layer, stack, target_for(workload(load.input_tokens, _WARM_UP_TOKENS)), warm_up)
        return measure(layer, stack, target_for(workload(load.input_tokens, load.output_tokens)), plan)

    report("starting the whole stack on a paced engine")
    engine = paced_engine(folder, load.tokens_per_second)
    with whole_stack(folder, {"ENGINE_DIR": str(engine)}) as stack:
        makers: list[tuple[str, Callable[[Workload], Target]]] = [
            (SLOT_LAYER, partial(slot_target, stack)),
            ("ensemble, Triton HTTP", partial(ensemble_target, stack)),
            (WHOLE_JSON, partial(cog_target, stack, is_streaming=False)),
            (WHOLE_SSE, partial(cog_target, stack, is_streaming=True)),
        ]
        yield from (one(stack, *maker) for maker in makers)
    report("starting Cog with a mock")
    with mock(folder) as stack:
        pace = load.tokens_per_second
        makers = [
            ("Cog mock alone, JSON", partial(mock_target, stack, tokens_per_second=pace, is_streaming=False)),
            ("Cog mock alone, SSE", partial(mock_target, stack, tokens_per_second=pace, is_streaming=True)),
        ]
        yield from (one(stack, *maker) for maker in makers)


def layers_table(measurements: Sequence[Measurement], tokens_per_second: float) -> str:
    """Speed and delay of each layer, its CPU by process, and the verdict; the engine's rate is ideal."""
    slot = next(each for each in measurements if each.name == SLOT_LAYER)
    speed = [
        [
            each.name,
            f"{each.tokens_per_second_per_stream:.1f}",
            _milliseconds(each.first_token_s),
            _added(each.first_token_s, slot.first_token_s),
            _milliseconds(each.summary.gap_s.p99 if each.summary.gap_s else None),
            str(each.summary.failed + each.summary.busy),
        ]
        for each in measurements
    ]
    head = ["layer", "tokens/s per stream", "TTFT", "TTFT added", "p99 gap", "not served"]
    roles = [role for role in ROLES if any(each.cpu_s[role] for each in measurements)]
    cpu = [
        [each.name, *(f"{_per_1000_tokens(each, role):.3f}" for role in [*roles, GENERATOR])]
        for each in measurements
    ]
    cpu_head = ["CPU s per 1,000 tokens", *roles, GENERATOR]
    return f"{table(head, speed)}\n\n{table(cpu_head, cpu)}\n\n{verdict(measurements, tokens_per_second)}"


def verdict(measurements: Sequence[Measurement], tokens_per_second: float) -> str:
    """Which layer takes the most of a stream's speed, and which process the most CPU, in the whole stack."""
    speeds = {each.name: each.tokens_per_second_per_stream for each in measurements}
    whole = next(each for each in measurements if each.name == WHOLE_JSON)
    losses = {
        "engine slot and Triton": tokens_per_second - speeds[SLOT_LAYER],
        "Cog and the runner": speeds[SLOT_LAYER] - speeds[whole.name],
    }
    slowest = max(losses, key=lambda name: losses[name])
    role, cpu_s = whole.cpu_s.most_common(1)[0] if whole.cpu_s else ("nothing", 0.0)
    share = cpu_s / (sum(whole.cpu_s.values()) or 1)
    lost = ", ".join(f"{name} {loss:.1f}" for name, loss in losses.items())
    return (
        f"Tokens/s per stream lost on the way: {lost}. Slowest: {slowest}. "
        f"Most CPU of the whole stack: {role}, {share:.0%} of the server's."
    )


def _per_1000_tokens(measurement: Measurement, role: str) -> float:
    cpu_s = measurement.run.client_cpu_s if role == GENERATOR else measurement.cpu_s[role]
    return cpu_s * 1000 / (measurement.summary.output_tokens or 1)


def _milliseconds(value_s: float | None) -> str:
    return "-" if value_s is None else f"{value_s * 1000:.1f} ms"


def _added(value_s: float | None, base_s: float | None) -> str:
    return "-" if value_s is None or base_s is None else f"{(value_s - base_s) * 1000:+.1f} ms"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Options("layers", __doc__)
    default = Load()
    parser.add_argument("--streams", type=int, default=default.streams, help="requests at once")
    parser.add_argument("--n_output_tokens", type=int, default=default.output_tokens, help="of each request")
    parser.add_argument("--n_input_tokens", type=int, default=default.input_tokens, help="of each prompt")
    parser.add_argument(
        "--tps", type=float, default=default.tokens_per_second, help="of the engine, per stream"
    )
    parser.add_argument("--batches", type=int, default=default.batches, help="per layer")
    chosen = parser.parse_args(arguments)
    load = Load(chosen.streams, chosen.n_output_tokens, chosen.n_input_tokens, chosen.tps, chosen.batches)
    measurements = measure_layers(load, lambda line: print(line, file=sys.stderr, flush=True))
    print(f"{machine()}; {load}\n\n{layers_table(measurements, load.tokens_per_second)}")
    return 0
