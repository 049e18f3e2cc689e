"""One load on one place, with what each process spent on it."""

from dataclasses import dataclass, replace

from perf.bench.effort import INPUT_TOKENS
from perf.load.generator import Run, joined, run
from perf.load.plan import Plan
from perf.load.prompt import guessed_prompt
from perf.load.summary import Summary, summarize
from perf.load.targets.cog import CogTarget, runner_inputs
from perf.load.targets.openai import OpenAITarget
from perf.load.targets.target import Posting, Target, Workload
from perf.processes import memory_bytes
from perf.servers import MODEL, Stack

_BATCH_PAUSE_S = 0.3
_REQUEST_TIMEOUT_S = 120.0


@dataclass(frozen=True)
class Measurement:
    """``memory_bytes`` is the server's memory right after."""

    run: Run
    memory_bytes: int

    @property
    def summary(self) -> Summary:
        return summarize(self.run)

    @property
    def not_served(self) -> int:
        return sum(not record.is_completed for record in self.run.records)

    @property
    def tokens_per_second_per_stream(self) -> float:
        """Mean SSTPS; 0 where nothing was completed."""
        values = self.summary.tokens_per_second_per_stream
        return values.mean if values else 0.0

    @property
    def first_token_ms(self) -> float | None:
        """Median time to first token as the client saw it."""
        values = self.summary.first_token_s
        return values.p50 * 1000 if values else None

    def cpu_s_per_1000_tokens(self, *roles: str) -> float:
        """Return the CPU time of these processes of the server, or of all."""
        seconds = sum(self.run.server_cpu_s[role] for role in roles or self.run.server_cpu_s)
        return seconds * 1000 / (self.summary.output_tokens or 1)


def measure(stack: Stack, target: Target, plan: Plan) -> Measurement:
    return Measurement(run(plan, target, stack.session), memory_bytes(stack.session))


def measure_cog(stack: Stack, output_tokens: int, plan: Plan) -> Measurement:
    return measure(stack, cog_target(stack, workload(INPUT_TOKENS, output_tokens), is_streaming=False), plan)


def measure_in_turns(plan: Plan, rounds: int, *places: tuple[Stack, Target]) -> list[Measurement]:
    """Measure each place ``rounds`` times in turn, so that all have the same conditions; join its rounds."""
    found = [[measure(stack, target, plan) for stack, target in places] for _ in range(rounds)]
    return [replace(parts[0], run=joined(part.run for part in parts)) for parts in zip(*found, strict=True)]


def batches(streams: int, request_s: float, count: int) -> Plan:
    """Plan ``count`` batches of requests that take about ``request_s`` each."""
    duration_s = (count - 0.5) * (request_s + _BATCH_PAUSE_S)
    return Plan("batch", streams, duration_s, pause_s=_BATCH_PAUSE_S, timeout_s=_REQUEST_TIMEOUT_S)


def workload(input_tokens: int, output_tokens: int) -> Workload:
    return Workload(guessed_prompt(input_tokens), input_tokens, output_tokens)


def cog_target(stack: Stack, work: Workload, *, is_streaming: bool) -> Posting:
    # As users send it: without the log lines of load tests.
    inputs = runner_inputs(work) | {"log_performance_metrics": False}
    return CogTarget(stack.server.url, inputs, is_streaming=is_streaming)


def mock_target(stack: Stack, work: Workload, *, tokens_per_second: float, is_streaming: bool) -> Posting:
    inputs = {"tps": tokens_per_second, "n_output_tokens": work.output_tokens}
    return CogTarget(stack.server.url, inputs, is_streaming=is_streaming)


def openai_target(stack: Stack, work: Workload, *, is_streaming: bool = True) -> Posting:
    return OpenAITarget(stack.openai_url, "completions", MODEL, work, is_streaming=is_streaming)
