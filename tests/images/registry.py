"""Debian's docker-registry on a port of its own, with a folder of its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import threading
from pathlib import Path
from types import TracebackType


class RegistryServer:
    """A registry from ``__enter__`` to ``__exit__``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.host = ""

    def __enter__(self) -> RegistryServer:
        self._folder.mkdir(exist_ok=True)
        config = {
            "version": 0.1,
            "log": {"level": "info", "formatter": "json", "accesslog": {"disabled": True}},
            "storage": {"filesystem": {"rootdirectory": str(self._folder / "data")}},
            "http": {"addr": "127.0.0.1:0"},
        }
        path = self._folder / "config.json"
        path.write_text(json.dumps(config))
        environment = {name: value for name, value in os.environ.items() if not name.startswith("REGISTRY_")}
        self._process = subprocess.Popen(
            ["docker-registry", "serve", path], stderr=subprocess.PIPE, text=True, env=environment
        )
        self.host = f"localhost:{self._port()}"
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.terminate()
        self._process.wait()

    def blobs(self) -> dict[str, int]:
        """Size of every blob that the registry has, by digest."""
        folder = self._folder / "data" / "docker" / "registry" / "v2" / "blobs" / "sha256"
        return {f"sha256:{path.parent.name}": path.stat().st_size for path in folder.glob("*/*/data")}

    def _port(self) -> int:
        """Return the port that it tells it took."""
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if match := re.search(r"listening on 127\.0\.0\.1:(\d+)", line):
                # NOTE: it stops when nobody takes what it writes.
                threading.Thread(target=self._process.stderr.read, daemon=True).start()
                return int(match[1])
        raise AssertionError("the registry ended")
