"""What a running server holds: memory, files, threads and shared memory of all its processes."""

from collections import Counter
from contextlib import closing, suppress
from pathlib import Path
from urllib.parse import urlsplit

from perf.processes import processes
from tests.runner.servers import Counters, wait_until

_MOST_GROWTH = 0.02
_SPARE_FILES = 8
"""Connections that are kept for the next request come and go."""
_BUSY = ("HTTP 409", "HTTP 429", "E1607", "E1111")
Resources = Counter[str]


def measure(session: int) -> Resources:
    """Return what all processes of a session hold. Memory is a process's own (anonymous), in bytes."""
    found: Resources = Counter()
    pids = set()
    for process in processes(session):
        with suppress(OSError):  # It has ended in the meantime.
            facts = dict(line.split(":", 1) for line in (process.folder / "status").read_text().splitlines())
            pids.add(process.folder.name)
            found["memory"] += int(facts["RssAnon"].split()[0]) * 1024
            found["threads"] += int(facts["Threads"])
            found["files"] += len(list((process.folder / "fd").iterdir()))
    found["shared memory"] = sum(
        path.name.split("_")[2] in pids for path in Path("/dev/shm").glob("cog_triton_*")
    )
    return found


def grown(before: Resources, after: Resources) -> list[str]:
    spare = {"memory": int(before["memory"] * _MOST_GROWTH), "files": _SPARE_FILES}
    return [
        f"{name}: {before[name]} -> {count}"
        for name, count in after.items()
        if count > before[name] + spare.get(name, 0)
    ]


def is_busy(error: str) -> bool:
    return error.startswith(_BUSY)


def counters(metrics_url: str) -> Counters:
    """Return the engine server's metrics. Close them."""
    return Counters(urlsplit(metrics_url).port or 0)


def settle(metrics_url: str) -> None:
    with closing(counters(metrics_url)) as found:
        wait_until(lambda: found.is_settled)
