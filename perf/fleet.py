"""Put load on servers behind a router of another project, and kill, add and drain servers meanwhile.

    make fleet
    .venv/bin/python -m perf fleet --router vllm-router --policy kv_aware --seconds 20

The servers are runners of this machine with the paced engine, which needs no GPU and whose texts are known:
each answer is compared. Prompts share few long prefixes. Exit status 1 if something was lost that need not be
lost: streams end with a server that is killed; all other requests must be answered.
"""

import argparse
import math
import os
import random
import re
import signal
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path

import urllib3
from tokenizers import Tokenizer

from engine.live_line import LiveLine
from engine.machine.description import machine
from engine.machine.processes import session_members
from errors.requests import InvalidInput
from perf.engines import paced_engine
from perf.load.generator import run
from perf.load.plan import Plan
from perf.load.summary import summarize
from perf.options import Options
from perf.peers.engine import Engine
from perf.peers.requests import Prompts
from perf.peers.servers import Endpoint
from perf.peers.workloads import Prompt, Words, Workload
from perf.routers import ROUTERS, Router, add_server, find_program, router
from perf.servers import MODEL, Stack, whole_stack
from perf.table import table
from runner.settings.ports import LOOPBACK, free_ports

_TOKENS_PER_SECOND = 100
_OUTPUT_TOKENS = 100
_PREFIXES, _PREFIX_TOKENS, _OWN_TOKENS = 8, 256, 16
_TIMEOUT_S = 120.0
_SAMPLE = re.compile(r"^(\S+) (\S+)$", re.MULTILINE)
_POLL_S = 0.5
_METRICS_AGE_S = 1.5
"""Age of a server's metrics at most."""
_KILL = "B is killed (SIGKILL)"
_SETTINGS = {"COG_LOG_LEVEL": "warning", "ROUTER_PROTOCOL": "vllm", "STOP_GRACE_PERIOD": "60"}
_HEAD = ["", "requests", *(f"by {each}" for each in "ABC"), "cut", "lost", "cached"]
_HEAD += ["first token, ms", "longest gap, ms"]
_REQUESTS = "cog_triton_slot_requests_total"
_CACHED = 'cog_triton_cached_input_tokens_total{api="openai"}'


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    for name in ("seconds", "streams"):
        if not 1 <= getattr(options, name) < math.inf:
            raise InvalidInput(name=name, expected="at least 1", value=getattr(options, name))
    find_program(ROUTERS[options.router][0])
    with tempfile.TemporaryDirectory(prefix="cog-triton-fleet-") as temporary:
        folder = (options.work or Path(temporary)).absolute()
        folder.mkdir(parents=True, exist_ok=True)
        with LiveLine() as line, ThreadPoolExecutor(1) as pool, ExitStack() as exits:
            return _Demo(options, folder, line, pool, exits).run()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = Options("fleet", __doc__)
    add = parser.add_argument
    add("--router", choices=ROUTERS, default="smg", help="the router in front")
    add("--policy", default="cache_aware", help="by which the router chooses a server")
    add("--streams", type=int, default=16, help="requests in flight")
    add("--seconds", type=float, default=12.0, help="duration of each of the five phases")
    add("--work", type=Path, metavar="FOLDER", help="for logs; it is kept")
    return parser.parse_args(arguments)


class _Demo:
    """Servers by name, behind one router."""

    def __init__(
        self, options: argparse.Namespace, folder: Path, line: LiveLine, pool: Executor, exits: ExitStack
    ) -> None:
        self._options, self._folder, self._line, self._pool, self._exits = options, folder, line, pool, exits
        engine_folder = paced_engine(folder, _TOKENS_PER_SECOND)
        self._engine = Engine(engine_folder, "paced", "", folder)
        self._words = Words(Tokenizer.from_file(str(engine_folder / "tokenizer.json")))
        self._stacks: dict[str, Stack] = {}
        self._events: list[str] = []
        """Addresses at which the servers publish the events of their KV caches."""
        self._metrics: dict[str, dict[str, float]] = {}
        """Last known metrics of each server."""
        self._rows: list[list[str]] = []
        self._totals = Counter[str]()
        self._router: Router

    def run(self) -> int:
        for each in "AB":
            self._start(each)
        name, policy = self._options.router, self._options.policy
        urls = [each.openai_url for each in self._stacks.values()]
        choice = ["--policy", policy]
        if policy == "kv_aware":  # NOTE: vllm-router gets no events of servers that are added later.
            choice += ["--kv-event-model", MODEL]
            for url, events in zip(urls, self._events, strict=True):
                choice += ["--kv-event-source", f"{url}={events}"]
        self._router = self._exits.enter_context(router(name, urls, self._folder / name, *choice))
        self._line.say(f"{name} ({policy}) at {self._router.url}, {self._options.streams} streams")
        self._phase("A and B serve")
        self._phase(_KILL, self._kill)
        self._phase("C is added", self._add)
        self._phase("A is drained (SIGTERM)", lambda: os.kill(self._stacks["A"].session, signal.SIGTERM))
        self._phase("C serves")
        self._line.show("stopping the servers")
        self._line.say(f"\n{machine()}; first token: p50/p99\n\n{table(_HEAD, self._rows)}\n")
        total, cut, lost = (self._totals[each] for each in ("requests", "cut", "lost"))
        self._line.say(
            f"{total} requests, each answer compared with the known text. {cut} were cut: they ran on B when "
            f"it was killed, and their clients saw that. Lost otherwise: {lost or 'nothing'}."
        )
        return 1 if lost else 0

    def _phase(self, title: str, change: Callable[[], None] | None = None) -> None:
        """Put load on the router; make the change after a third of the time."""
        seconds = self._options.seconds
        prompts = self._prompts(title)
        endpoint = Endpoint("openai", self._router.url, self._router.session, self._engine)
        target = Prompts(endpoint, prompts, self._words.tokenizer)
        streams, most = self._options.streams, len(prompts)
        plan = Plan("concurrency", streams, seconds, most_requests=most, timeout_s=_TIMEOUT_S)
        before = {name: dict(each) for name, each in self._metrics.items()}
        began_s, changed_s = time.perf_counter(), math.inf
        loading = self._pool.submit(run, plan, target)
        while not loading.done():
            if change and time.perf_counter() - began_s > seconds / 3:
                change()
                change, changed_s = None, time.perf_counter() - began_s
            self._line.show(f"{title}: {_told(self._since(before, _REQUESTS))}", is_new=False)
            time.sleep(_POLL_S)
        time.sleep(_METRICS_AGE_S)
        counts, cached = self._since(before, _REQUESTS), self._since(before, _CACHED)
        records = loading.result().records
        failed = [each for each in records if not each.is_completed]
        # Streams end with a server that is killed; those sent later must be answered.
        lost = [each for each in failed if title != _KILL or each.sent_s >= changed_s]
        for error, count in Counter(each.answer.error for each in lost).most_common(3):
            self._line.say(f"{title}: {count} lost: {error}")
        found = {"requests": len(records), "cut": len(failed) - len(lost), "lost": len(lost)}
        self._totals.update(found)
        share = sum(cached.values()) / max(1, sum(each.answer.input_tokens or 0 for each in records))
        summary = summarize(loading.result())
        first, gap = summary.first_token_s, summary.gap_s
        waits = [f"{1000 * first.p50:.0f}/{1000 * first.p99:.0f}" if first else "-"]
        waits.append(f"{1000 * gap.max:.0f}" if gap else "-")
        numbers = [found["requests"], *(counts.get(each, "") for each in "ABC"), found["cut"], found["lost"]]
        self._rows.append([title, *map(str, numbers), f"{share:.0%}", *waits])
        self._line.say(f"{title}: {len(records)} requests, {_told(counts)}")

    def _prompts(self, seed: str) -> list[Prompt]:
        """Make more prompts than a phase can take. Each begins with one of few prefixes."""
        request_s = _OUTPUT_TOKENS / _TOKENS_PER_SECOND
        count = int(4 * self._options.streams * (self._options.seconds / request_s + 1))
        lengths = [(_PREFIX_TOKENS, 1), (_OWN_TOKENS, _OUTPUT_TOKENS)]
        shapes = [Workload(1, 1, (own, own), (output, output)) for own, output in lengths]
        prefixes = self._words.prompts(shapes[0], _PREFIXES, "prefixes")
        choose = random.Random(seed).choice
        texts = [choose(prefixes).text + own.text for own in self._words.prompts(shapes[1], count, seed)]
        return [Prompt(each, self._words.tokenizer.encode(each).ids, _OUTPUT_TOKENS) for each in texts]

    def _since(self, before: Mapping[str, Mapping[str, float]], metric: str) -> dict[str, int]:
        """Ask the servers for ``metric``; return by how much it grew since ``before``, by server.

        A server that has ended keeps its last value.
        """
        for name, stack in self._stacks.items():
            with suppress(urllib3.exceptions.HTTPError):
                answer = urllib3.request("GET", f"{stack.openai_url}/metrics", timeout=2, retries=False)
                told = _SAMPLE.findall(answer.data.decode())
                self._metrics[name] |= {each: float(value) for each, value in told}
        return {
            name: int(each.get(metric, 0.0) - before.get(name, {}).get(metric, 0.0))
            for name, each in self._metrics.items()
        }

    def _start(self, name: str) -> None:
        self._line.show(f"starting server {name}")
        folder = self._folder / name
        folder.mkdir(exist_ok=True)
        (port,) = free_ports(1)
        self._events.append(f"tcp://{LOOPBACK}:{port}")
        own = {"ENGINE_DIR": str(self._engine.folder), "KV_EVENTS": f"tcp://*:{port}"}
        stack = self._exits.enter_context(whole_stack(folder, _SETTINGS | own))
        self._stacks[name], self._metrics[name] = stack, {}
        self._line.say(f"server {name} at {stack.openai_url}, READY after {stack.start_s:.1f} s")

    def _kill(self) -> None:
        for pid in session_members(self._stacks["B"].session):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _add(self) -> None:
        self._start("C")
        add_server(self._options.router, self._router, self._stacks["C"].openai_url)


def _told(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} by {name}" for name, count in counts.items())
