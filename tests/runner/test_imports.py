"""What processes of the runner import before they serve: nothing large that they do not use."""

import subprocess
import sys

import pytest

from engine.machine.root import SOURCE_ROOT


@pytest.mark.parametrize(
    ("module", "unused"),
    [
        ("runner.cog_server.__main__", {"runner.service", "numpy", "aiohttp", "grpc", "tokenizers"}),
        ("runner.run", {"numpy", "aiohttp", "grpc", "runner.dynamo"}),
        ("runner.api.__main__", {"numpy", "aiohttp", "grpc", "runner.api.routers.protocol"}),
        ("runner.engines.server.main", {"numpy", "aiohttp", "grpc", "pydantic", "tokenizers", "zmq"}),
    ],
)
def test_a_process_imports_only_what_it_uses(module: str, unused: set[str]) -> None:
    program = f"import sys, {module}; print(*sys.modules)"
    command = [sys.executable, "-c", program]
    answer = subprocess.run(command, cwd=SOURCE_ROOT, capture_output=True, text=True, check=True)
    assert unused.isdisjoint(answer.stdout.split())
