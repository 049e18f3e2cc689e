"""Put the same load on each layer of the stack, in one run with the paced engine: which layer is slow?"""

import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

from engine.machine.description import machine
from perf.bench.effort import FEW_STREAMS, INPUT_TOKENS, PACE, SOME_TOKENS, Effort
from perf.bench.measure import Measurement, batches, cog_target, measure, openai_target, workload
from perf.engines import paced_engine
from perf.load.targets.target import Target, Workload
from perf.load.targets.triton import TritonTarget
from perf.processes import ROLES
from perf.servers import whole_stack
from perf.table import table
from runner.triton_server.model_names import ENSEMBLE, SLOT

_SLOT, _WHOLE = "engine slot, Triton HTTP", "whole stack, Cog JSON"
_WARM_UP_TOKENS = 8
_HEAD = ("layer", "tokens/s per stream", "TTFT", "TTFT added", "p99 gap", "not served")


def report(effort: Effort) -> str:
    """Measure all layers; return speed and delay of each, its CPU by process, and which one is slow."""
    with tempfile.TemporaryDirectory(prefix="cog-triton-bench-") as name:
        measured = dict(_measure_layers(effort, Path(name)))
    first_ms = measured[_SLOT].first_token_ms
    roles = [role for role in ROLES if any(each.run.server_cpu_s[role] for each in measured.values())]
    speed, cpu = [], []
    for name, each in measured.items():
        own_ms, gap_s = each.first_token_ms, each.summary.gap_s
        delays = ["-", "-"]
        if own_ms is not None and first_ms is not None:
            delays = [f"{own_ms:.1f} ms", f"{own_ms - first_ms:+.1f} ms"]
        gap = f"{gap_s.p99 * 1000:.1f} ms" if gap_s else "-"
        speed.append([name, f"{each.tokens_per_second_per_stream:.1f}", *delays, gap, str(each.not_served)])
        generator_s = each.run.client_cpu_s * 1000 / (each.summary.output_tokens or 1)
        values = [*(each.cpu_s_per_1000_tokens(role) for role in roles), generator_s]
        cpu.append([name, *(f"{value:.3f}" for value in values)])
    load = f"{FEW_STREAMS} streams of {SOME_TOKENS} tokens at {PACE:g}/s"
    cpu_head = ["CPU s per 1,000 tokens", *roles, "load generator"]
    tables = [table(_HEAD, speed), table(cpu_head, cpu)]
    return "\n\n".join([f"{machine()}; {load}", *tables, _verdict(measured)])


def _measure_layers(effort: Effort, folder: Path) -> Iterator[tuple[str, Measurement]]:
    with whole_stack(folder, {"ENGINE_DIR": str(paced_engine(folder, PACE))}) as stack:
        layers: dict[str, Callable[[Workload], Target]] = {
            "engine slot, Triton itself": partial(TritonTarget, stack.triton_itself_url, SLOT),
            _SLOT: partial(TritonTarget, stack.triton_url, SLOT),
            "ensemble, Triton HTTP": partial(TritonTarget, stack.triton_url, ENSEMBLE),
            _WHOLE: partial(cog_target, stack, is_streaming=False),
            "whole stack, Cog SSE": partial(cog_target, stack, is_streaming=True),
            "API server, JSON": partial(openai_target, stack, is_streaming=False),
            "API server, events": partial(openai_target, stack, is_streaming=True),
        }
        for name, target_for in layers.items():
            print(f"measuring: {name}", file=sys.stderr, flush=True)
            warm_up = batches(FEW_STREAMS, _WARM_UP_TOKENS / PACE, 1)
            measure(stack, target_for(workload(INPUT_TOKENS, _WARM_UP_TOKENS)), warm_up)
            plan = batches(FEW_STREAMS, SOME_TOKENS / PACE, effort.batches)
            yield name, measure(stack, target_for(workload(INPUT_TOKENS, SOME_TOKENS)), plan)


def _verdict(measured: Mapping[str, Measurement]) -> str:
    """Return which layer takes most of a stream's speed, and which process most CPU, in the whole stack."""
    slot, whole = (measured[name].tokens_per_second_per_stream for name in (_SLOT, _WHOLE))
    losses = {"engine slot and Triton": max(PACE - slot, 0.0), "Cog and the runner": max(slot - whole, 0.0)}
    cpu_s = measured[_WHOLE].run.server_cpu_s
    role, most_s = cpu_s.most_common(1)[0] if cpu_s else ("nothing", 0.0)
    lost = ", ".join(f"{name} {loss:.1f}" for name, loss in losses.items())
    slowest = max(losses, key=losses.__getitem__) if any(losses.values()) else "none"
    return (
        f"Tokens/s per stream lost on the way: {lost}. Slowest: {slowest}. "
        f"Most CPU of the whole stack: {role}, {most_s / (sum(cpu_s.values()) or 1):.0%} of the server's."
    )
