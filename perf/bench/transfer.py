"""An engine.tar on loopback HTTP: fetched, unpacked and verified in turns with ``curl | tar x``."""

import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from engine.directory import load
from engine.machine.root import SOURCE_ROOT
from engine.tar.manifest import EngineFacts
from engine.tar.pack import pack
from errors.settings import MissingRequirement
from perf.engines import paced_engine

# It prints how long it took without the start of Python.
_OPEN = """
import sys, time
from pathlib import Path
from engine.cache.store import open_engine
started = time.monotonic()
open_engine(sys.argv[1], Path(sys.argv[2]))
print(time.monotonic() - started)
"""


def make_tar(folder: Path, file_bytes: int, files: int) -> Path:
    """Make an engine.tar of a paced engine with ``files`` files of random bytes beside it."""
    directory = paced_engine(folder, 0)
    facts = load(directory).manifest.model_dump(include=set(EngineFacts.model_fields))
    (directory / "engine_manifest.json").unlink()
    content = os.urandom(file_bytes)
    for index in range(files):
        (directory / f"weights-{index:06}.bin").write_bytes(content)
    tar = folder / "engine.tar"
    pack(directory, EngineFacts(**facts), tar)
    shutil.rmtree(directory)
    return tar


def measure_transfer(tar: Path, folder: Path, rounds: int) -> tuple[float, float]:
    """Return the seconds of curl and tar, and ours: in turns; the best of each counts."""
    if shutil.which("curl") is None:
        raise MissingRequirement(what="curl", remedy="install it: its speed is what ours is compared with")
    with serve_file(tar) as url:
        plain = ["sh", "-c", 'curl -sf "$0" | tar x -C "$1"', url]
        ours = [sys.executable, "-c", _OPEN, url]
        pairs = [[_seconds(command, folder / "place") for command in (plain, ours)] for _ in range(rounds)]
    curl_s, our_s = map(min, zip(*pairs, strict=True))
    return curl_s, our_s


def _seconds(command: list[str], place: Path) -> float:
    """Run a command on an empty folder that is gone afterwards; return what it prints, or its time."""
    place.mkdir()
    os.sync()  # The disk is idle when it begins.
    started_s = time.monotonic()
    done = subprocess.run([*command, str(place)], cwd=SOURCE_ROOT, check=True, stdout=subprocess.PIPE)
    seconds = time.monotonic() - started_s
    shutil.rmtree(place)
    return float(done.stdout or seconds)


@contextmanager
def serve_file(path: Path) -> Iterator[str]:
    """Serve ``path`` on loopback, with ranges, sent by the kernel, so that it takes no time; its URL."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # Else the end of each range waits for an acknowledgement.

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class's name
            """Write no access log."""

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
