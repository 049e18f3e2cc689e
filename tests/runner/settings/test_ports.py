"""Free ports: no two processes get the same."""

import subprocess
import sys

from engine.machine.root import SOURCE_ROOT
from runner.settings.ports import free_ports

PROGRAM = "from runner.settings.ports import free_ports; print(*free_ports(200), flush=True); input()"


def test_several_processes_get_ports_of_their_own() -> None:
    command = [sys.executable, "-c", PROGRAM]
    others = [
        subprocess.Popen(
            command, cwd=SOURCE_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(3)
    ]
    ports = free_ports(200)
    for other in others:
        ports += map(int, other.stdout.readline().split())
    for other in others:
        other.communicate(b"\n")
    assert len(set(ports)) == 800
