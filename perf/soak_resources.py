"""What a running server holds: memory, files, threads and shared memory of all its processes."""

from __future__ import annotations

import time
import urllib.request
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from perf.bench.processes import role_of

_MOST_GROWTH = 0.02
_SPARE_FILES = 8
"""Connections that are kept for the next request come and go."""


@dataclass(frozen=True)
class Resources:
    """By role of process, and of all."""

    memory_bytes: Counter[str]
    files: Counter[str]
    threads: Counter[str]
    shared_memory: int

    def compare(self, before: Resources) -> bool:
        """Print what changed since ``before``; whether a promise is broken."""
        print(f"  {'process':<22} {'memory, MiB':>20} {'files':>14} {'threads':>12}")
        for role in sorted(self.memory_bytes):
            then, now = before.memory_bytes[role] / 2**20, self.memory_bytes[role] / 2**20
            print(
                f"  {role:<22} {then:>8.1f} -> {now:>8.1f} {before.files[role]:>5} -> {self.files[role]:>5}"
                f" {before.threads[role]:>4} -> {self.threads[role]:>4}"
            )
        growth = self.memory_bytes.total() / before.memory_bytes.total() - 1
        print(f"  memory grew by {growth:.2%}; shared memory: {before.shared_memory} -> {self.shared_memory}")
        return (
            growth > _MOST_GROWTH
            or self.files.total() > before.files.total() + _SPARE_FILES
            or self.threads.total() > before.threads.total()
            or self.shared_memory > before.shared_memory
        )


def measure(session: int) -> Resources:
    """Of all processes in a session. Memory is what is a process's own (anonymous)."""
    memory: Counter[str] = Counter()
    files: Counter[str] = Counter()
    threads: Counter[str] = Counter()
    pids = set()
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # It ended while we looked.
            if int((folder / "stat").read_text().rpartition(")")[2].split()[3]) != session:
                continue
            pids.add(folder.name)
            role = role_of((folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            facts = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
            memory[role] += int(facts["RssAnon"].split()[0]) * 1024
            threads[role] += int(facts["Threads"])
            files[role] += len(list((folder / "fd").iterdir()))
    names = [path.name.split("_") for path in Path("/dev/shm").glob("cog_triton_*")]  # noqa: S108
    shared = sum(name[2] in pids for name in names)
    return Resources(memory, files, threads, shared)


def settle(metrics_port: int, timeout_s: float) -> bool:
    """Wait until all requests that the slot took have ended; whether they did."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        taken, ended, running = 0.0, 0.0, 0.0
        with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics") as answer:
            for line in answer.read().decode().splitlines():
                value = line.rpartition(" ")[2]
                if line.startswith("cog_triton_slot_requests_total "):
                    taken = float(value)
                elif line.startswith("cog_triton_slot_ended_requests_total{"):
                    ended += float(value)
                elif line.startswith("cog_triton_slot_running_requests "):
                    running = float(value)
        if taken == ended and not running:
            return True
        time.sleep(0.2)
    return False
