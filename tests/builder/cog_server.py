"""The real Cog server with the builder's Runner in its worker."""

from __future__ import annotations

import functools
import http.server
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from engine.download.address import ALLOW_VARIABLE
from engine.machine.root import SOURCE_ROOT
from runner.cog_server import launch
from runner.settings.ports import free_ports

START_TIMEOUT_S = 500.0
REQUEST_TIMEOUT_S = 110.0
HOST = "127.0.0.1"


class CogServer(launch.CogServer):
    """Builder's Cog server in ``folder``, where engine.tar will be."""

    def __init__(self, folder: Path, environment: Mapping[str, str], *options: str) -> None:
        (port,) = free_ports(1)
        self.folder = folder
        shutil.copytree(SOURCE_ROOT / "builder" / ".cog", folder / ".cog")
        # Configs are served on loopback here.
        extra = {"LOG_FORMAT": "console", ALLOW_VARIABLE: "true", **environment}
        super().__init__(
            "builder",
            host=HOST,
            port=port,
            log_path=folder / "server.log",
            extra=extra,
            folder=folder,
            options=options,
        )
        try:
            self.wait_ready(START_TIMEOUT_S)
        except BaseException:
            self.stop()
            raise

    @property
    def log(self) -> list[str]:
        """All lines that server and worker have printed."""
        return self.log_path.read_text(errors="replace").splitlines()

    def build(self, **inputs: object) -> dict[str, Any]:
        """Return the answer to a prediction that was waited for, once the server is not busy with the last
        one.
        """
        self.is_ready()
        response = httpx.post(f"{self.url}/predictions", json={"input": inputs}, timeout=REQUEST_TIMEOUT_S)
        answer: dict[str, Any] = response.json()
        return answer

    def close(self) -> None:
        self.stop()

    def is_ready(self) -> bool:
        """Right after an answer it may still be BUSY for a moment."""
        self.wait_ready(START_TIMEOUT_S)
        return True

    def worker_pid(self) -> int:
        (child,) = (
            pid
            for children in Path(f"/proc/{self.pid}/task").glob("*/children")
            for pid in children.read_text().split()
        )
        return int(child)


class _Handler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def served_configs(folder: Path) -> Iterator[Callable[[dict[str, Any]], str]]:
    """Yield a function that writes a config into ``folder`` and returns its URL on loopback."""
    handler = functools.partial(_Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer((HOST, 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()

        def serve(keys: dict[str, Any]) -> str:
            (folder / "config.yaml").write_text(yaml.safe_dump(keys))
            return f"http://{HOST}:{server.server_port}/config.yaml"

        yield serve
        server.shutdown()
