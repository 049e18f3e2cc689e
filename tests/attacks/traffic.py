"""Random hostile traffic for a while, and what became of it."""

import itertools
import os
import time
from collections import Counter, defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from tests.attacks import grpc_streams, http1
from tests.attacks.http1 import Outcome, Ports

_NICENESS = 10
_MOST_REFUSED = 100
"""Connections, until the server is taken to have ended."""
_UNCODED = {"500", "502", "503", "504", "UNKNOWN", "INTERNAL"}
"""Statuses that need a code."""
ATTACKS = {**http1.ATTACKS, **grpc_streams.ATTACKS}


@dataclass
class Traffic:
    """Counts of answers by kind of attack, the slowest ones, and answers that break a promise."""

    answers: defaultdict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    slowest_s: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    wrong: list[str] = field(default_factory=list)

    def add(self, kind: str, number: int, found: Outcome) -> None:
        self.answers[kind][f"{found.port} {found.answer}"] += 1
        self.slowest_s[kind] = max(self.slowest_s[kind], found.seconds)
        if found.answer in _UNCODED or b"Traceback" in found.text:
            self.wrong.append(f"number {number}, {kind}: {found.port} {found.answer} {found.text[:500]!r}")


def send_traffic(
    ports: Ports, seconds: float, workers: int, first: int, kinds: list[str], log: Path
) -> Traffic:
    """Attacks of all kinds in turn from number ``first`` on, several at once; a number is always the same."""
    os.nice(_NICENESS)
    traffic, end_s, numbers = Traffic(), time.monotonic() + seconds, itertools.count(first)
    refused: list[str] = []

    def work() -> None:
        while time.monotonic() < end_s and len(refused) < _MOST_REFUSED:
            number = next(numbers)
            kind = Random(number // len(kinds)).sample(kinds, len(kinds))[number % len(kinds)]
            print(f"{time.strftime('%X')} {number} {kind} begins", file=lines, flush=True)
            try:
                for found in ATTACKS[kind](ports, Random(number)):
                    traffic.add(kind, number, found)
                    print(f"{time.strftime('%X')} {number} {kind}: {found!s:.200}", file=lines, flush=True)
            except OSError as exc:
                traffic.answers[kind][f"no connection ({type(exc).__name__})"] += 1
                if isinstance(exc, ConnectionRefusedError):
                    refused.append(kind)
                    time.sleep(1)

    with log.open("w") as lines, ThreadPoolExecutor(workers) as pool:
        for done in [pool.submit(work) for _ in range(workers)]:
            done.result()
    return traffic
