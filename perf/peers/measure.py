"""One workload on one server, from one client process: what its clients saw and what its processes spent."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tokenizers import Tokenizer

from perf.load.clients import run
from perf.load.plan import Plan
from perf.load.record import Answer
from perf.load.response import Response
from perf.load.statistics import Distribution
from perf.load.summary import summarize
from perf.load.targets.in_order import InOrder
from perf.peers.servers import Endpoint
from perf.peers.triton_vllm import GENERATE, GenerateTarget
from perf.peers.workloads import Prompt
from perf.processes import CORE, cpu_s_by_role, memory_bytes
from perf.prove_gpu.client import output_text, posting

_DURATION_S = 500.0
"""More than any closed loop takes."""
_TIMEOUT_S = 240.0
_MS = 1000.0


@dataclass(frozen=True)
class Row:
    """Times in ms as (p50, p90, p99); None of an answer that was no stream."""

    workload: str
    server: str
    round: int
    tokens_per_second: float
    requests_per_second: float
    first_token_ms: tuple[float, float, float] | None
    gap_ms: tuple[float, float, float] | None
    events_per_token: float
    tokens: int
    completed: int
    not_served: int
    cpu_s: dict[str, float]
    """By role of process."""
    client_cpu_s: float
    memory_bytes: int
    errors: list[str]
    warnings: list[str]

    @property
    def total_cpu_s(self) -> float:
        return sum(self.cpu_s.values())

    @property
    def front_cpu_s(self) -> float:
        """Without the engine core."""
        return sum(seconds for role, seconds in self.cpu_s.items() if role not in CORE)


class _Sequence(InOrder):
    """Prompts with the number of tokens that each is answered with."""

    def __init__(self, endpoint: Endpoint, prompts: Sequence[Prompt], *, is_streaming: bool = True) -> None:
        kind, url, _ = endpoint
        self._kind = kind
        self.outputs: dict[int, str] = {}
        self._tokens = [each.output_tokens for each in prompts]
        super().__init__(
            [
                GenerateTarget(url, each.text, each.output_tokens, is_streaming=is_streaming)
                if kind == GENERATE
                else posting(
                    kind,
                    url,
                    each.ids if kind == "slot" else each.text,
                    each.output_tokens,
                    is_streaming=is_streaming,
                )
                for each in prompts
            ]
        )

    def read_one(self, index: int, answer: Answer, response: Response) -> Answer:
        if answer.outcome == "completed" and answer.output_tokens != self._tokens[index]:
            error = f"{answer.output_tokens} tokens instead of {self._tokens[index]}"
            return replace(answer, outcome="failed", error=error)
        return answer


class _Texts(_Sequence):
    """Also keeps the texts."""

    def read_one(self, index: int, answer: Answer, response: Response) -> Answer:
        answer = super().read_one(index, answer, response)
        self.outputs[index] = output_text(self._kind, response) if answer.outcome == "completed" else ""
        return answer


def texts(endpoint: Endpoint, prompts: Sequence[Prompt], tokenizer: Tokenizer) -> list[str]:
    """The answers to the prompts, all begun together; blank for one that failed."""
    target = _Texts(endpoint, prompts)
    run(closed_loop(len(prompts), len(prompts)), target)
    outputs = [target.outputs.get(index, "") for index in range(len(prompts))]
    if endpoint.kind == "slot":
        return [tokenizer.decode(list(map(int, output.split()))) for output in outputs]
    return outputs


def measure(
    name: str,
    server: str,
    number: int,
    endpoint: Endpoint,
    prompts: Sequence[Prompt],
    plan: Plan,
    *,
    is_whole: bool = False,
) -> Row:
    """Each prompt once, by the plan."""
    before = cpu_s_by_role(endpoint.session)
    done = run(plan, _Sequence(endpoint, prompts, is_streaming=not is_whole))
    spent = cpu_s_by_role(endpoint.session) - before
    found = summarize(done)
    events = sum(len(each.answer.output_s) for each in done.records if each.is_completed)
    return Row(
        workload=name,
        server=server,
        round=number,
        tokens_per_second=found.tokens_per_second,
        requests_per_second=found.requests_per_second,
        first_token_ms=_percentiles(found.first_token_s),
        gap_ms=_percentiles(found.gap_s),
        events_per_token=events / (found.output_tokens or 1),
        tokens=found.output_tokens,
        completed=found.completed,
        not_served=found.requests - found.completed,
        cpu_s={role: round(seconds, 3) for role, seconds in spent.items()},
        client_cpu_s=found.client_cpu_s,
        memory_bytes=memory_bytes(endpoint.session),
        errors=list(found.errors)[:3],
        warnings=list(found.warnings),
    )


def closed_loop(streams: int, requests: int) -> Plan:
    return Plan(
        "concurrency", min(streams, requests), _DURATION_S, most_requests=requests, timeout_s=_TIMEOUT_S
    )


def open_loop(requests_per_second: float, requests: int) -> Plan:
    duration_s = requests / requests_per_second
    return Plan("rps", requests_per_second, duration_s, is_poisson=True, timeout_s=_TIMEOUT_S)


def _percentiles(found: Distribution | None) -> tuple[float, float, float] | None:
    return (found.p50 * _MS, found.p90 * _MS, found.p99 * _MS) if found else None
