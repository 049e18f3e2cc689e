"""One load on one place, with what each process spent on it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from perf import resources
from perf.load.clients import Run, run
from perf.load.plan import Plan
from perf.load.prompt import guessed_prompt
from perf.load.summary import Summary, summarize
from perf.load.targets.cog import CogTarget, mock_inputs, runner_inputs
from perf.load.targets.openai import OpenAITarget
from perf.load.targets.target import Posting, Target, Workload
from perf.load.targets.triton import ENSEMBLE, SLOT, TritonTarget
from perf.processes import cpu_s_by_role
from perf.servers import MODEL, Stack

GENERATOR = "load generator"
_BATCH_PAUSE_S = 0.3
_REQUEST_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Measurement:
    """``cpu_s`` is by process; ``memory_bytes`` is the server's memory right after."""

    name: str
    run: Run
    cpu_s: Counter[str]
    memory_bytes: int

    @property
    def summary(self) -> Summary:
        return summarize(self.run)

    @property
    def tokens_per_second_per_stream(self) -> float:
        """Mean SSTPS; 0 where nothing was completed."""
        values = self.summary.tokens_per_second_per_stream
        return values.mean if values else 0.0

    @property
    def first_token_s(self) -> float | None:
        """Median time to first token as the client saw it."""
        values = self.summary.first_token_s
        return values.p50 if values else None

    @property
    def server_cpu_s_per_1000_tokens(self) -> float:
        tokens = self.summary.output_tokens
        return sum(self.cpu_s.values()) * 1000 / tokens if tokens else 0.0


def measure(name: str, stack: Stack, target: Target, plan: Plan) -> Measurement:
    before = cpu_s_by_role(stack.session)
    done = run(plan, target)
    after = cpu_s_by_role(stack.session)
    return Measurement(name, done, after - before, resources.measure(stack.session).memory_bytes.total())


def pooled(parts: Sequence[Measurement]) -> Measurement:
    """Several measurements of the same as one."""
    first = parts[0]
    records = [record for part in parts for record in part.run.records]
    cpu_s = sum((part.cpu_s for part in parts), Counter[str]())
    client_cpu_s = sum(part.run.client_cpu_s for part in parts)
    return replace(first, run=replace(first.run, records=records, client_cpu_s=client_cpu_s), cpu_s=cpu_s)


def batches(streams: int, request_s: float, count: int) -> Plan:
    """A plan of ``count`` batches of requests that take about ``request_s`` each."""
    period_s = request_s + _BATCH_PAUSE_S
    return Plan(
        "batch", streams, (count - 0.5) * period_s, pause_s=_BATCH_PAUSE_S, timeout_s=_REQUEST_TIMEOUT_S
    )


def workload(input_tokens: int, output_tokens: int) -> Workload:
    return Workload(guessed_prompt(input_tokens), input_tokens, output_tokens)


def cog_target(stack: Stack, work: Workload, *, is_streaming: bool) -> Posting:
    # As users send it: without the log lines of load tests.
    inputs = runner_inputs(work) | {"log_performance_metrics": False}
    return CogTarget(stack.cog_url, inputs, is_streaming=is_streaming)


def mock_target(stack: Stack, work: Workload, *, tokens_per_second: float, is_streaming: bool) -> Target:
    inputs = mock_inputs(
        tps=tokens_per_second, output_tokens=work.output_tokens, output_method="yield", buffer_size=None
    )
    return CogTarget(stack.cog_url, inputs, is_streaming=is_streaming)


def openai_target(stack: Stack, work: Workload) -> Posting:
    return OpenAITarget(stack.openai_url, "completions", MODEL, work, None)


def slot_target(stack: Stack, work: Workload) -> Target:
    return TritonTarget(stack.triton_url, SLOT, work)


def ensemble_target(stack: Stack, work: Workload) -> Target:
    return TritonTarget(stack.triton_url, ENSEMBLE, work)
