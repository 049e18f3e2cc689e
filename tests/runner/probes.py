"""An orchestrator's probes, run as it runs them."""

import os
import subprocess
import sys

from runner.probe import QUESTIONS


def answers(port: int) -> dict[str, bool]:
    return {question: ask(port, question).returncode == 0 for question in QUESTIONS}


def ask(port: int, *question: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "runner.probe", *question]
    environment = {**os.environ, "PORT": str(port)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
