"""Measure an engine's way from an HTTP server to READY.

An engine.tar on loopback HTTP is fetched, unpacked and verified, in turns with `curl | tar x` on it: once of
few large files, once of many small ones. Then a runner starts on it, and its log shows how long each step
takes. The disk needs room for four times the size.
"""

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from engine.directory import load
from engine.machine.description import machine
from engine.machine.root import SOURCE_ROOT
from engine.tar.manifest import EngineFacts
from engine.tar.pack import pack
from errors.requests import InvalidInput
from errors.settings import MissingRequirement
from perf.engines import paced_engine
from perf.options import Options
from perf.servers import whole_stack
from perf.table import table

SMALL_FILE_BYTES = 64 << 10
_LARGE_FILES = 4
_MOST_SMALL_FILES = 1 << 16
"""More than the weights of any model, and within what a tar may have."""
_BLOCK_BYTES = 8 << 20
_TIMEOUT_S = 3600.0
_HEAD = ("engine.tar", "GiB", "curl, tar x", "fetch + unpack + verify", "speed", "extra memory")

# Run by a process of its own, whose memory is this work's alone.
_OPEN = """
import re, sys, time
from pathlib import Path
from engine.cache.store import open_engine
def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
before, started = peak(), time.monotonic()
open_engine(sys.argv[1], Path(sys.argv[2]))
print(time.monotonic() - started, peak() - before)
"""

_MILESTONES = (
    ("coglet ", "Cog's server has started"),
    ("Worker starting setup", "Cog's worker has started"),
    ("Running setup", "the runner is imported"),
    ("engine: ", "the engine is fetched, unpacked and verified"),
    ("triton: ", "Triton has started"),
    ("loading: tensorrt_llm", "Triton loads its models"),
    ("engine ready", "the engine server has loaded the engine"),
    ("successfully loaded 'ensemble'", "all of Triton's models are ready"),
    ("test prediction", "a test prediction is done"),
    ("Setup complete", "the runner is set up"),
)
"""What a line of the runner's log says, and what it means."""


def make_tar(folder: Path, size_bytes: int, files: int) -> Path:
    """An engine.tar of a paced engine with ``files`` files of random bytes beside it."""
    directory = paced_engine(folder, 0)
    facts = load(directory).manifest.model_dump(include=set(EngineFacts.model_fields))
    (directory / "engine_manifest.json").unlink()
    block = os.urandom(_BLOCK_BYTES)
    for index in range(files):
        left_bytes = size_bytes // files
        with (directory / f"weights-{index:06}.bin").open("wb") as file:
            while left_bytes:
                left_bytes -= file.write(block[:left_bytes])
    tar = folder / "engine.tar"
    pack(directory, EngineFacts(**facts), tar)
    shutil.rmtree(directory)
    return tar


class Transfer(NamedTuple):
    """Seconds of both, and our memory."""

    tar_bytes: int
    curl_s: float
    our_s: float
    extra_bytes: int

    @property
    def cells(self) -> list[str]:
        """With our speed: above 1 is faster."""
        gib, mib = self.tar_bytes / (1 << 30), self.extra_bytes / (1 << 20)
        speed = f"{self.curl_s / self.our_s:.2f}x"
        return [f"{gib:.2f}", f"{self.curl_s:.2f} s", f"{self.our_s:.2f} s", speed, f"{mib:.0f} MiB"]


def measure_transfer(tar: Path, folder: Path, rounds: int) -> Transfer:
    """In turns; the best of each counts."""
    if shutil.which("curl") is None:
        raise MissingRequirement(what="curl", remedy="install it: its speed is what ours is compared with")
    curl_tar_s, ours_s, extra_bytes = [], [], []
    with serve_file(tar) as url:
        for _ in range(rounds):
            with _scratch(folder / "plain") as plain:
                started_s = time.monotonic()
                subprocess.run(["sh", "-c", f"curl -sf '{url}' | tar x -C '{plain}'"], check=True)
                curl_tar_s.append(time.monotonic() - started_s)
            with _scratch(folder / "cache") as cache:
                command = [sys.executable, "-c", _OPEN, url, str(cache)]
                done = subprocess.run(command, cwd=SOURCE_ROOT, capture_output=True, text=True, check=True)
                seconds, more_bytes = done.stdout.split()
                ours_s.append(float(seconds))
                extra_bytes.append(int(more_bytes))
    return Transfer(tar.stat().st_size, min(curl_tar_s), min(ours_s), max(extra_bytes))


def measure_start(tar: Path, folder: Path) -> list[tuple[float, str]]:
    """Seconds since a process was started with COG_WEIGHTS at a URL and an empty cache, and what happened."""
    with serve_file(tar) as url, _scratch(folder / "start") as scratch:
        started_s = time.time()
        with whole_stack(scratch, {"COG_WEIGHTS": url}, timeout_s=_TIMEOUT_S) as stack:
            ready_s = time.time()
            steps = list(_steps(stack.server.log_path.read_text(errors="replace"), started_s))
    return [*sorted(steps), (ready_s - started_s, "READY was seen")]


def _steps(log: str, started_s: float) -> Iterator[tuple[float, str]]:
    """The first line of each milestone."""
    waiting = dict(_MILESTONES)
    for line in log.splitlines():
        try:
            entry = json.loads(line)
            text = str(entry["fields"]["message"])
            at = datetime.fromisoformat(entry["timestamp"].replace("Z", "")).replace(tzinfo=timezone.utc)
        except (ValueError, KeyError, TypeError):
            continue  # Not one of Cog's lines.
        for sign in [each for each in waiting if each in text]:
            yield at.timestamp() - started_s, waiting.pop(sign)


def start_table(steps: Sequence[tuple[float, str]]) -> str:
    """When each step was reached, and how long since the one before."""
    rows = [
        [what, f"{at_s:.2f} s", f"{at_s - since_s:+.2f} s"]
        for (since_s, _), (at_s, what) in pairwise([(0.0, ""), *steps])
    ]
    return table(["reached", "after", "step"], rows)


@contextmanager
def serve_file(path: Path) -> Iterator[str]:
    """Serve ``path`` on loopback, with ranges, sent by the kernel, so that it takes no time; its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # Else the end of each range waits for an acknowledgement.

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """No access log."""

        def do_GET(self) -> None:
            size_bytes = path.stat().st_size
            wanted = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
            first = int(wanted[1]) if wanted else 0
            last = min(int(wanted[2]) if wanted and wanted[2] else size_bytes - 1, size_bytes - 1)
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {first}-{last}/{size_bytes}")
            self.send_header("ETag", f'"{path.stat().st_mtime_ns}"')
            self.send_header("Content-Length", str(last + 1 - first))
            self.end_headers()
            self.wfile.flush()
            with path.open("rb") as file, suppress(ConnectionError):  # The client has disconnected.
                self.connection.sendfile(file, first, last + 1 - first)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        try:
            yield f"http://127.0.0.1:{server.server_port}/{path.name}"
        finally:
            server.shutdown()


@contextmanager
def _scratch(folder: Path) -> Iterator[Path]:
    """An empty folder that is gone afterwards; the disk is idle when it begins."""
    folder.mkdir()
    os.sync()
    try:
        yield folder
    finally:
        shutil.rmtree(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Options("cold-start", __doc__)
    parser.add_argument("--gib", type=float, default=1.0, help="size of engine.tar")
    parser.add_argument("--rounds", type=int, default=3, help="measurements of each; the best counts")
    parser.add_argument("--folder", help="where to work (the temporary folder by default)")
    options = parser.parse_args(arguments)
    if not SMALL_FILE_BYTES <= options.gib * (1 << 30) < math.inf:
        raise InvalidInput(name="gib", expected="a size above 0", value=options.gib)
    if options.rounds < 1:
        raise InvalidInput(name="rounds", expected="at least 1", value=options.rounds)
    size_bytes = int(options.gib * (1 << 30))
    rows = []
    steps: list[tuple[float, str]] = []
    for files in (_LARGE_FILES, min(size_bytes // SMALL_FILE_BYTES, _MOST_SMALL_FILES)):
        with tempfile.TemporaryDirectory(prefix="cog-triton-cold-", dir=options.folder) as name:
            print(f"fetching and unpacking {files} files, and with curl and tar", file=sys.stderr, flush=True)
            tar = make_tar(Path(name), size_bytes, files)
            rows.append([f"{files} files", *measure_transfer(tar, Path(name), options.rounds).cells])
            if not steps:
                print("starting a runner on them", file=sys.stderr, flush=True)
                steps = measure_start(tar, Path(name))
    print(f"{machine()}\n\n{table(_HEAD, rows)}\n\n{start_table(steps)}")
    return 0
