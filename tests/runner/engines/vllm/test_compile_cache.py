"""When the real vLLM uses graphs that it compiled before. On a processor: there is no GPU."""

import json
import os
import subprocess
from pathlib import Path

import pytest

from engine.machine.root import SOURCE_ROOT
from perf.peers.engine import Engine, standin_engine
from tests.runner.engines.vllm.test_real_core import PYTHON

pytestmark = [
    pytest.mark.slow,
    pytest.mark.servers,
    pytest.mark.skipif(not PYTHON.exists(), reason="vLLM's environment is not here"),
]
COMPILED, LOADED = {"compiled": 1, "loaded": 0}, {"compiled": 0, "loaded": 1}


def start(engine: Engine, cache_dir: Path) -> dict[str, int]:
    command = [engine.python, "-m", "tests.standins.vllm_compiled_module", str(engine.folder), str(cache_dir)]
    environment = {**os.environ, **engine.variables}
    run = subprocess.run(
        command, env=environment, cwd=SOURCE_ROOT, capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    counts: dict[str, int] = json.loads(run.stdout.splitlines()[-1])
    return counts


def test_graphs_are_used_again_and_a_cache_that_was_moved_begins_anew(tmp_path: Path) -> None:
    engine = standin_engine(str(PYTHON), tmp_path)
    cache_dir, moved = tmp_path / "engine_cache", tmp_path / "moved"
    assert start(engine, cache_dir) == COMPILED
    assert start(engine, cache_dir) == LOADED
    cache_dir.rename(moved)
    assert start(engine, moved) == COMPILED
