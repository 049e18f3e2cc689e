"""The real Cog server, as a process, with the builder's Runner in its worker."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx

from engine.download.address import ALLOW_VARIABLE

ROOT = Path(__file__).resolve().parents[2]
START_TIMEOUT_S = 300.0
REQUEST_TIMEOUT_S = 400.0


class CogServer:
    """Runs in ``folder``, where engine.tar will be; ``log`` is all that server and worker print."""

    def __init__(self, folder: Path, environment: Mapping[str, str], *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.folder = folder
        self.log: list[str] = []
        self._is_ready = threading.Event()
        self._write_schema()
        # NOTE: the worker is the first `python` on PATH, whatever runs the server.
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "cog.server.http", "--host", "127.0.0.1", *options],
            cwd=folder,
            env={
                **os.environ,
                "PATH": path,
                "PORT": str(port),
                "PYTHONPATH": str(ROOT),
                "COG_PREDICT_TYPE_STUB": f"{ROOT / 'builder' / 'run.py'}:Runner",
                "LOG_FORMAT": "console",
                ALLOW_VARIABLE: "true",  # Configs are served on loopback here.
                **environment,
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        threading.Thread(target=self._read_log, daemon=True).start()
        assert self._is_ready.wait(START_TIMEOUT_S), self.log

    def build(self, **inputs: object) -> dict[str, Any]:
        """The answer to a prediction that was waited for."""
        response = httpx.post(f"{self.url}/predictions", json={"input": inputs}, timeout=REQUEST_TIMEOUT_S)
        answer: dict[str, Any] = response.json()
        return answer

    def is_ready(self) -> bool:
        return bool(httpx.get(f"{self.url}/health-check").json()["status"] == "READY")

    def worker_pid(self) -> int:
        (child,) = (
            pid
            for children in Path(f"/proc/{self.process.pid}/task").glob("*/children")
            for pid in children.read_text().split()
        )
        return int(child)

    def close(self) -> None:
        self.process.terminate()
        self.process.wait(20)

    def _read_log(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.log.append(line)
            if "now accepting requests" in line:
                self._is_ready.set()

    def _write_schema(self) -> None:
        inputs = {
            "config": {"type": "string"},
            "hf_token": {"type": "string", "format": "password", "nullable": True},
        }
        schemas = {
            "Input": {"type": "object", "required": ["config"], "properties": inputs},
            "Output": {"type": "string", "format": "uri"},
        }
        schema = {"openapi": "3.0.2", "paths": {}, "components": {"schemas": schemas}}
        (self.folder / ".cog").mkdir()
        (self.folder / ".cog" / "openapi_schema.json").write_text(json.dumps(schema))
