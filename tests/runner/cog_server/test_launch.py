"""``CogServer`` leaves nothing behind if its owner is killed."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from engine.machine.root import SOURCE_ROOT
from tests.runner.paced_engine import make_paced_model
from tests.runner.servers import (
    engine_pids,
    free_ports,
    is_running,
    triton_environment,
    triton_pids,
    wait_until,
)

pytestmark = pytest.mark.servers

_OWNER = """
import sys
from pathlib import Path
from runner.cog_server.launch import CogServer

port, log, *pairs = sys.argv[1:]
extra = dict(pair.split("=", 1) for pair in pairs)
server = CogServer("runner", host="127.0.0.1", port=int(port), log_path=Path(log), extra=extra)
server.wait_ready(500)
print(server.pid, flush=True)
sys.stdin.read()
"""


def test_a_script_that_is_killed_leaves_no_server(tmp_path: Path) -> None:
    model = make_paced_model(tmp_path / "model", 200)
    port, http, grpc, metrics = free_ports(4)
    extra = triton_environment(http, grpc, metrics) | {
        "ENGINE_DIR": str(model.directory),
        "COG_TRITON_CACHE": str(tmp_path / "cache"),
        "TMPDIR": str(tmp_path),
    }
    arguments = [str(port), str(tmp_path / "log"), *(f"{name}={value}" for name, value in extra.items())]
    owner = subprocess.Popen(
        [sys.executable, "-c", _OWNER, *arguments],
        cwd=SOURCE_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        server = int(owner.stdout.readline())
        pids = [server, *triton_pids(http), *engine_pids(http)]
        assert len(pids) == 6
        try:
            owner.kill()
            owner.wait()
            wait_until(lambda: not any(map(is_running, pids)), 60)
        finally:
            for pid in filter(is_running, pids):
                os.kill(pid, signal.SIGKILL)
