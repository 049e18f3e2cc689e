"""A running container of an image, its ports published on this machine."""

from __future__ import annotations

import functools
import http.server
import ipaddress
import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

import httpx

WITHOUT_RIGHTS = (
    *("--user", "4321:4321"),
    *("--cap-drop", "ALL"),
    *("--security-opt", "no-new-privileges"),
    *("--read-only", "--tmpfs", "/tmp:mode=1777,exec"),
)
"""Options of `docker run`: any user, without privileges, on a root file system that can't be written."""
_READY_TIMEOUT_S = 300.0
_POLL_S = 0.2


def docker(*arguments: str) -> str:
    """Run a docker command; returns its stdout."""
    return subprocess.run(["docker", *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout


@contextmanager
def http_server(folder: Path) -> Iterator[str]:
    """Offer a folder's files to containers, as `python -m http.server` does; gives the URL they can ask."""
    # NOTE: a daemon that has just made the bridge reports no Gateway; it is the first address of the subnet.
    subnet = docker("network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Subnet}}").strip()
    gateway = str(next(ipaddress.ip_network(subnet).hosts()))
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    with http.server.ThreadingHTTPServer((gateway, 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://{gateway}:{server.server_port}"
        server.shutdown()


class Container:
    """A container that runs from ``__enter__`` to ``__exit__``, with these options of `docker run`."""

    def __init__(self, reference: str, *options: str) -> None:
        self._command = ["run", "--detach", "--publish-all", *options, reference]
        self.id = ""

    def __enter__(self) -> Container:
        self.id = docker(*self._command).strip()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.logs())
        docker("rm", "--force", "--volumes", self.id)

    def port(self, inside: int) -> int:
        """Return the port on this machine of a port in the container."""
        return int(docker("port", self.id, f"{inside}/tcp").splitlines()[0].rpartition(":")[2])

    def url(self, inside: int) -> str:
        return f"http://localhost:{self.port(inside)}"

    def wait_ready(self) -> None:
        """Until Cog says READY; AssertionError if setup fails or takes too long."""
        deadline_s = time.monotonic() + _READY_TIMEOUT_S
        pause = threading.Event()
        while time.monotonic() < deadline_s:
            status = self._status()
            if status == "READY":
                return
            assert status in ("", "STARTING"), status
            assert self.state()["Running"], self.logs()
            pause.wait(_POLL_S)
        raise AssertionError("not ready in time")

    def predict(self, inputs: dict[str, Any]) -> dict[str, Any]:
        answer = httpx.post(f"{self.url(5000)}/predictions", json={"input": inputs}, timeout=120)
        document: dict[str, Any] = answer.json()
        return document

    def execute(self, *command: str) -> str:
        return docker("exec", self.id, *command)

    def unsafe_paths(self) -> str:
        """Return what gives rights to who runs it, and what anyone may write though it should not."""
        script = (
            "import os, stat, sys\n"
            "for folder, folders, names in os.walk('/'):\n"
            "    folders[:] = [each for each in folders if folder + each not in ('/proc', '/sys', '/dev')]\n"
            "    for name in folders + names:\n"
            "        path = os.path.join(folder, name)\n"
            "        mode = os.lstat(path).st_mode\n"
            "        if stat.S_ISLNK(mode): continue\n"
            "        if mode & (stat.S_ISUID | stat.S_ISGID): print('gives rights', path)\n"
            "        if mode & stat.S_IWOTH and not mode & stat.S_ISVTX: print('writable', path)\n"
        )
        return self.execute("python", "-c", script)

    def state(self) -> dict[str, Any]:
        state: dict[str, Any] = json.loads(docker("inspect", "--format", "{{json .State}}", self.id))
        return state

    def logs(self) -> str:
        return subprocess.run(
            ["docker", "logs", self.id],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
        ).stdout

    def _status(self) -> str:
        try:
            return str(httpx.get(f"{self.url(5000)}/health-check", timeout=300).json()["status"])
        except (httpx.HTTPError, ValueError):
            return ""
