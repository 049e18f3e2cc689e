"""What a running server holds: memory, files, threads and shared memory of all its processes."""

import time
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import urllib3
from prometheus_client.parser import text_string_to_metric_families

from perf.processes import processes
from perf.table import table

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

    def compare(self, before: "Resources") -> bool:
        """Print what changed since ``before``; whether more is held than may be."""
        rows = [
            [
                role,
                f"{before.memory_bytes[role] / 2**20:.1f} -> {self.memory_bytes[role] / 2**20:.1f}",
                f"{before.files[role]} -> {self.files[role]}",
                f"{before.threads[role]} -> {self.threads[role]}",
            ]
            for role in sorted(self.memory_bytes)
        ]
        print(table(["process", "memory, MiB", "files", "threads"], rows))
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
    for process in processes(session):
        with suppress(OSError):  # It has ended in the meantime.
            facts = dict(line.split(":", 1) for line in (process.folder / "status").read_text().splitlines())
            pids.add(process.folder.name)
            memory[process.role] += int(facts["RssAnon"].split()[0]) * 1024
            threads[process.role] += int(facts["Threads"])
            files[process.role] += len(list((process.folder / "fd").iterdir()))
    names = [path.name.split("_") for path in Path("/dev/shm").glob("cog_triton_*")]  # noqa: S108
    return Resources(memory, files, threads, sum(name[2] in pids for name in names))


def metrics(url: str) -> dict[str, float]:
    """Values by the metric's name; those with labels are also summed up under the name alone."""
    text = urllib3.request("GET", url, timeout=10).data.decode()
    values: defaultdict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            values[sample.name] += sample.value
            for label, value in sample.labels.items():
                values[f"{sample.name} {label}={value}"] += sample.value
    return dict(values)


def answers_ok(url: str) -> bool:
    try:
        return urllib3.request("GET", url, timeout=2, retries=False).status == 200
    except urllib3.exceptions.HTTPError:
        return False


def settle(metrics_url: str, timeout_s: float) -> bool:
    """Wait until all requests that the slot accepted have ended; whether they did."""
    deadline_s = time.monotonic() + timeout_s
    while time.monotonic() < deadline_s:
        found = metrics(metrics_url)
        ended = found.get("cog_triton_slot_ended_requests_total", 0.0)
        if (
            found.get("cog_triton_slot_requests_total") == ended
            and not found["cog_triton_slot_running_requests"]
        ):
            return True
        time.sleep(0.2)
    return False
