"""Hostile traffic of all kinds on every port, beside paced streams whose text is known.

    python -m perf hostile --seconds 3600

Starts the runner on a paced engine, with streams by Cog, by the API and by Triton, first alone and then
beside random attacks (tests/attacks). Prints the pace of the streams, the answers that attackers got, memory,
and what was left behind. Exit status 1 if a text was wrong, a process ended, a request was not freed, or an
error had no code or a traceback; times and memory are measured, not judged.
"""

import argparse
import asyncio
import itertools
import multiprocessing
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Awaitable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from tokenizers import Tokenizer

from perf.engines import paced_engine
from perf.known_streams import APIS, TRITON_APIS, KnownStreams
from perf.load.statistics import percentile
from perf.options import Options
from perf.processes import RENDERER, processes
from perf.resources import measure, settle
from perf.servers import Stack, whole_stack
from perf.table import table

_TOKENS_PER_SECOND = 25
_FEWEST_TOKENS, _MOST_TOKENS = 50, 250
_SPARE_GAP_MS = 100
_BUSY = ("HTTP 409", "HTTP 429", "E1607", "E1111")
"""Errors of a server whose places are all taken."""
_RETRY_S = 1.0
_SETTLE_S = 90.0
_SHOWN = 30
_TRACEBACK = "Traceback (most recent call last)"


class Pace:
    """Streams by all APIs, one after another, for a while. Times are whole milliseconds, by API."""

    def __init__(self) -> None:
        self.gaps_ms: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self.first_ms: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self.busy: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def run(self, known: KnownStreams, count: int, stopped: asyncio.Event) -> None:
        numbers = itertools.count()
        apis = itertools.islice(itertools.cycle((*APIS, *TRITON_APIS)), count)

        async def client(api: str) -> None:
            while not stopped.is_set():
                number = next(numbers)
                num_tokens = _FEWEST_TOKENS + number * 37 % (_MOST_TOKENS - _FEWEST_TOKENS)
                found = await known.request(api, f"{number} Once upon a time", num_tokens)
                if found.error.startswith(_BUSY):
                    self.busy[api] += 1
                    await asyncio.sleep(_RETRY_S)
                    continue
                if found.error or not found.is_exact:
                    text = "exact" if found.is_exact else "WRONG"
                    self.wrong.append(f"{time.strftime('%X')} a stream by {api}: text {text}, {found.error}")
                    await asyncio.sleep(_RETRY_S)
                self.first_ms[api][round(found.first_s * 1000)] += 1
                self.gaps_ms[api].update(round(each * 1000) for each in found.pauses_s)

        await asyncio.gather(*map(client, apis))

    def compare(self, alone: "Pace") -> str:
        rows = []
        for api, gaps_ms in self.gaps_ms.items():
            limit_ms = max(alone.gaps_ms[api]) + _SPARE_GAP_MS
            late = sum(count for gap_ms, count in gaps_ms.items() if gap_ms > limit_ms)
            columns = (alone.gaps_ms[api], gaps_ms, alone.first_ms[api], self.first_ms[api])
            counts = (self.first_ms[api].total(), self.busy[api], gaps_ms.total(), late)
            rows.append([api, *map(str, counts), *map(_figures, columns)])
        head = ["", "streams", "refused", "gaps", f"{_SPARE_GAP_MS} ms over alone", "gaps alone", "gaps"]
        return table([*head, "first token alone", "first token"], rows)


def _figures(values: Counter[int]) -> str:
    """Median, 99th percentile and largest."""
    ordered = sorted(values.elements())
    return " / ".join(f"{percentile(ordered, share):.0f}" for share in (0.5, 0.99, 1))


class Memory:
    """The highest resident memory of each process since this object was made."""

    def __init__(self, session: int) -> None:
        self.roles = {each.folder: each.role for each in processes(session)}
        for folder in self.roles:
            (folder / "clear_refs").write_text("5")  # Its peak begins anew.

    def peaks(self) -> dict[Path, int]:
        """Bytes; of processes that have not ended."""
        found = {}
        for folder in self.roles:
            status = (folder / "status").read_text() if folder.exists() else ""
            facts = dict(line.split(":", 1) for line in status.splitlines())
            if "VmHWM" in facts:
                found[folder] = int(facts["VmHWM"].split()[0]) * 1024
        return found

    def compare(self, calm: dict[Path, int]) -> str:
        """Rows for processes that are still there."""
        rows = [
            [self.roles[folder], *(f"{each >> 20}" for each in (calm[folder], peak, peak - calm[folder]))]
            for folder, peak in self.peaks().items()
            if folder in calm
        ]
        return table(["process", "peak alone, MiB", "peak", "grown by"], rows)


async def _hostile(options: argparse.Namespace, engine: Path, folder: Path) -> int:
    from tests.attacks.traffic import send_traffic

    with whole_stack(folder, {"ENGINE_DIR": str(engine)}, has_api=True) as stack:
        known = KnownStreams(stack, Tokenizer.from_file(str(engine / "tokenizer.json")))
        memory = Memory(stack.session)
        alone = Pace()
        await _beside(asyncio.sleep(options.alone), known, alone, options.streams)
        before, calm = measure(stack.session), memory.peaks()
        pace = Pace()
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
            ports = {name: port for name, port in _ports(stack).items() if name != options.spare}
            attack = partial(send_traffic, ports, options.seconds, options.workers, options.first)
            attack = partial(attack, options.kinds, folder / "traffic.log")
            sending = asyncio.get_running_loop().run_in_executor(pool, attack)
            await _beside(sending, known, pace, options.streams)
            traffic = sending.result()
        known.close()
        ended = [role for each, role in memory.roles.items() if role != RENDERER and not each.exists()]
        is_settled = not ended and settle(stack.metrics_url, _SETTLE_S)
        after, memory_table = measure(stack.session), memory.compare(calm)
    print(f"{options.seconds} s; gaps and times to first token: median / 99th percentile / largest, ms\n")
    print(pace.compare(alone), memory_table, sep="\n\n")
    after.compare(before)
    rows = [
        [
            kind,
            f"{traffic.slowest_s[kind]:.1f}",
            ", ".join(f"{count} x {each}" for each, count in sorted(found.items())),
        ]
        for kind, found in traffic.answers.items()
    ]
    print("", table(["attack", "slowest, s", "answers"], rows), sep="\n")
    wrong = [*alone.wrong, *pace.wrong, *traffic.wrong, *(f"a process has ended: {role}" for role in ended)]
    wrong += [] if is_settled else ["the slot still has requests"]
    log = (folder / "runner.log").read_text(errors="replace")
    print(f"\nthe server's log has {len(log) >> 10} KiB")
    wrong += [f"the log has {_TRACEBACK}"] * log.count(_TRACEBACK)
    print(f"\n{len(wrong)} defects" if wrong else "\nall promises kept", *wrong[:_SHOWN], sep="\n  ")
    return 1 if wrong else 0


async def _beside(doing: Awaitable[object], known: KnownStreams, pace: Pace, streams: int) -> None:
    """Streams until something is done."""
    stopped = asyncio.Event()
    running = asyncio.create_task(pace.run(known, streams, stopped))
    await doing
    stopped.set()
    await running


def _ports(stack: Stack) -> dict[str, int]:
    urls = {"cog": stack.server.url, "api": stack.openai_url, "http": stack.triton_url}
    urls |= {"grpc": f"http://{stack.triton_grpc}", "metrics": stack.metrics_url}
    return {name: urlsplit(url).port or 0 for name, url in urls.items()}


def main(arguments: Sequence[str] | None = None) -> int:
    from tests.attacks.traffic import ATTACKS

    parser = Options("hostile", __doc__)
    parser.add_argument("--seconds", type=float, default=3600, help="length of the hostile traffic")
    parser.add_argument("--alone", type=float, default=60, help="seconds of the streams alone before")
    parser.add_argument("--streams", type=int, default=32, help="paced streams at once")
    parser.add_argument("--workers", type=int, default=12, help="attacks at once")
    parser.add_argument("--first", type=int, default=0, help="number of the first attack")
    parser.add_argument(
        "--kinds", nargs="+", choices=ATTACKS, default=list(ATTACKS), help="attacks", metavar="KIND"
    )
    parser.add_argument("--spare", choices=("cog", "api", "http"), default="", help="a port not to attack")
    parser.add_argument("--folder", type=Path, help="keep the logs here (default: a temporary folder)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="hostile-") as name:
        engine = paced_engine(Path(name), _TOKENS_PER_SECOND)
        return asyncio.run(_hostile(options, engine, options.folder or Path(name)))
