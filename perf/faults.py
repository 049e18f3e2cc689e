"""Kill and stop each process of a loaded server, and check what its clients get.

    python -m perf faults --rounds 3

Starts the runner on a paced engine, whose texts are known, with streams by Cog, by the OpenAI-compatible API
and by Triton. Kills (SIGKILL) and stops (SIGSTOP) each process once a round, in random order and at random
times. Prints a row for each, after one without a signal, and at last what the servers left behind. Exit
status 1 if clients lose more than docs/reliability.md says; times are measured, not judged. A round takes two
minutes.
"""

import argparse
import asyncio
import random
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from engine.machine.processes import session_members
from perf.drills import ENGINE_CHILD, EXPECTED, TOKENS_PER_SECOND, UNDISTURBED, Drill
from perf.engines import paced_engine
from perf.known_streams import APIS, COG, OPENAI
from perf.options import Options
from perf.servers import Stack, whole_stack

SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
_SHOWN = 5
_KEPT = {"flight-recorder", "metrics"}
"""Folders of what is kept about processes that have ended."""
Plan = list[tuple[str, signal.Signals | None]]
_ROW = "{:<21}{:<9}{:>6}{:>6}{:>7}{:>9}{:>10}{:>6}{:>9}{:>15}{:>6}{:>8}  {}"
_HEAD = ("", "", "lost", "", "", "inexact", "pause, ms", "", "gone, s", "unready, s", "", "ready", "errors")
_HEAD_2 = ("process", "signal", *APIS, "", COG, OPENAI, "", COG, OPENAI, "again, s", "of lost streams")


def row(drill: Drill) -> str:
    lost = Counter(each.api for each in drill.streams if each.error)
    errors = Counter(each.error for each in drill.streams if each.error)
    pauses_s = (
        max((each.longest_pause_s for each in drill.streams if each.api == api), default=0.0)
        for api in (COG, OPENAI)
    )
    return _ROW.format(
        drill.role,
        "-" if drill.number is None else drill.number.name,
        *(lost[api] for api in APIS),
        sum(not each.is_exact for each in drill.streams),
        *(round(each * 1000) for each in pauses_s),
        *map(_seconds, (drill.gone_s, drill.seen_s.get(COG), drill.seen_s.get(OPENAI), drill.ready_s)),
        ", ".join(f"{count} x {error}" for error, count in errors.items()) or "-",
    )


def _seconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


async def _faults(options: argparse.Namespace) -> int:
    chance = random.Random(options.seed)
    roles = [role for role in EXPECTED if role != UNDISTURBED and (options.engine or role != ENGINE_CHILD)]
    plan = [(role, number) for role in roles for number in SIGNALS] * options.rounds
    chance.shuffle(plan)
    print(_ROW.format(*_HEAD), _ROW.format(*_HEAD_2), sep="\n", flush=True)
    broken = 0
    while plan:
        with tempfile.TemporaryDirectory(prefix="faults-") as name:
            broken += await _on_one_server(Path(name), plan, options, chance)
    print(f"{broken} differences from what is expected" if broken else "all as expected")
    return 1 if broken else 0


async def _on_one_server(folder: Path, plan: Plan, options: argparse.Namespace, chance: random.Random) -> int:
    """Take drills from ``plan`` until one ends the server. Returns how many differences were found."""
    tokenizer, settings, tmp = None, {"COG_WEIGHTS": options.engine}, folder / "tmp"
    if not options.engine:
        engine = paced_engine(folder, TOKENS_PER_SECOND)
        tokenizer, settings = Tokenizer.from_file(str(engine / "tokenizer.json")), {"ENGINE_DIR": str(engine)}
    tmp.mkdir()
    settings |= {"TMPDIR": str(tmp), "FAILURE_LIMIT": str(len(plan) + 1)}
    with whole_stack(folder, settings, engine_python=options.engine_python, has_api=True) as stack:
        files = files_in(folder)
        broken, drill = 0, None
        while plan and not (drill and drill.ends_server):
            if drill is None:
                plan.append((UNDISTURBED, None))
            drill = Drill(stack, tokenizer, options.streams, chance, *plan.pop())
            await drill.run()
            print(row(drill), *drill.broken[:_SHOWN], sep="\n    ", flush=True)
            broken += len(drill.broken)
    left = left_behind(stack, folder, files)
    print(f"left behind: {', '.join(left) or 'nothing'}")
    return broken + len(left)


def left_behind(stack: Stack, folder: Path, files: set[Path]) -> list[str]:
    """What an ended server left, but for ``files`` that it had when it was ready."""
    found = [f"process {pid}" for pid in session_members(stack.session)]
    found += map(str, Path("/dev/shm").glob(f"cog_triton_*_{stack.triton_port}_*"))  # noqa: S108
    return found + [str(each) for each in files_in(folder) - files]


def files_in(folder: Path) -> set[Path]:
    return {path for path in folder.rglob("*") if not path.is_dir() and _KEPT.isdisjoint(path.parts)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Options("faults", __doc__)
    parser.add_argument("--rounds", type=int, default=1, help="how often each process is killed and stopped")
    parser.add_argument("--streams", type=int, default=64, help="at once, by Cog and as many by the API")
    parser.add_argument("--seed", type=int, default=0, help="of the order and the times")
    parser.add_argument("--engine", default="", help="an engine.tar (default: paced); texts are unchecked")
    parser.add_argument("--engine-python", default=sys.executable, help="of the engine's environment")
    return asyncio.run(_faults(parser.parse_args(arguments)))
