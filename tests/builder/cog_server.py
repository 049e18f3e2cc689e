"""The real Cog server with the builder's Runner in its worker."""

import shutil
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
from tests.scripted_server import Asked, ScriptedServer, Write, head

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
        return response.json()

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


@contextmanager
def served_configs() -> Iterator[Callable[..., str]]:
    """Yield a function that serves a config of the given keys and returns its URL on loopback."""
    configs: dict[str, bytes] = {}

    def answer(asked: Asked, write: Write) -> bool:
        config = configs[asked.path]
        write(head(200, {"Content-Length": len(config)}) + config)
        return True

    with ScriptedServer(answer) as server:

        def serve(**keys: Any) -> str:
            configs[path := f"/{len(configs)}.yaml"] = yaml.safe_dump(keys).encode()
            return f"{server.url}{path}"

        yield serve
