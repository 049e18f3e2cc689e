"""Hostile traffic for tests: raw bytes to a port, while memory and latency of the server are measured.

with Watch(pid, url) as watch:
    flood(port, [...], connections=100)
assert watch.grown_mib < 64
assert watch.slowest_s < 0.1
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import TracebackType

import httpx

from engine.machine.root import SOURCE_ROOT

HOST = "127.0.0.1"
_TIMEOUT_S = 300.0


def most_slow_s() -> float:
    """Return the longest wait of others: HOSTILE_LATENCY_S by the load; 0.1 on a machine of its own."""
    limit_s = float(os.environ.get("HOSTILE_LATENCY_S", "2"))
    return limit_s * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))


class Watch:
    """Measures a process, and how long one of its URLs takes to answer, from entering to leaving."""

    def __init__(self, pid: int, url: str) -> None:
        self._pid = pid
        self._url = url
        self._first_mib = self._most_mib = 0.0
        self.latencies_s: list[float] = []
        """Each of a request after the other, 10 ms apart."""
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._measure_memory)
        self._client: subprocess.Popen[str]

    def __enter__(self) -> Watch:
        # NOTE: a process of its own, as the traffic of this one would slow it.
        command = [sys.executable, "-m", "tests.hostile", self._url]
        self._client = subprocess.Popen(
            command, cwd=SOURCE_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._client.stdout.readline()
        self._first_mib = self._most_mib = resident_mib(self._pid)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ends.set()
        self._thread.join()
        output, _ = self._client.communicate("", timeout=_TIMEOUT_S)
        assert self._client.returncode == 0, output
        self.latencies_s = [float(line) for line in output.splitlines()]

    @property
    def grown_mib(self) -> float:
        return self._most_mib - self._first_mib

    @property
    def slowest_s(self) -> float:
        return max(self.latencies_s)

    def _measure_memory(self) -> None:
        while not self._ends.wait(0.005):
            self._most_mib = max(self._most_mib, resident_mib(self._pid))


def resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    (line,) = (line for line in status.splitlines() if line.startswith("VmRSS:"))
    return int(line.split()[1]) / 1024


def request(path: str, body: bytes, *headers: str, method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def chunked(path: str, chunks: Iterable[bytes], *headers: str) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    head = "\r\n".join([*lines, "Transfer-Encoding: chunked", "", ""]).encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks) + b"0\r\n\r\n"


def send(port: int, data: bytes, *, pause_s: float = 0.0, piece_bytes: int = 1 << 20) -> bytes:
    """Send ``data``, if asked slowly, and return what the server answers until it is silent or closes."""
    with socket.create_connection((HOST, port), timeout=_TIMEOUT_S) as connection:
        with suppress(OSError):  # The server may close before it has read all.
            for at in range(0, len(data), piece_bytes):
                connection.sendall(data[at : at + piece_bytes])
                time.sleep(pause_s)
        return received(connection)


def received(connection: socket.socket, silence_s: float = _TIMEOUT_S) -> bytes:
    """One response, or all until the server closes."""
    connection.settimeout(silence_s)
    data = bytearray()
    with suppress(OSError):
        while part := connection.recv(1 << 16):
            data += part
            if is_complete(data):
                break
    return bytes(data)


def is_complete(data: bytes | bytearray) -> bool:
    end = data.find(b"\r\n\r\n")
    lengths = [line for line in data[:end].lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return bool(lengths) and end >= 0 and len(data) - end - 4 >= int(lengths[0].partition(b":")[2])


def flood(attack: Callable[[int], bytes], connections: int) -> list[bytes]:
    """Run ``attack`` for each number of a connection, all at once, and return the results."""
    with ThreadPoolExecutor(connections) as pool:
        return list(pool.map(attack, range(connections)))


def status_of(answer: bytes) -> int:
    """0: the server has closed the connection without an answer."""
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0


def main() -> None:
    """Ask for a URL again and again until standard input closes; write how long each answer took."""
    with httpx.Client(timeout=_TIMEOUT_S) as client:
        client.get(sys.argv[1])
        print("ready", flush=True)
        while True:
            start_s = time.perf_counter()
            response = client.get(sys.argv[1])
            print(time.perf_counter() - start_s)
            assert response.status_code == 200, response.text
            if select.select([sys.stdin], [], [], 0.01)[0]:
                return


if __name__ == "__main__":
    main()
