"""The table of engine kinds: a kind is one row and one folder, and no other module knows its name."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.kinds import KINDS, find_kind, supports
from engine.machine.root import SOURCE_ROOT
from errors.settings import InvalidSetting

PACKAGES = ("errors", "engine", "builder", "runner", "cli", "tools", "mock_cog_triton")
"""Not perf, which chooses the kinds that it measures."""
OWN = ("engine/kinds.py", "builder/kinds/", "builder/trtllm/", *(f"runner/engines/{name}/" for name in KINDS))

ROW = """
    Kind(
        name="countdown",
        adapter="runner.engines.countdown.adapter",
        runs_on="any machine with a clock",
        marker_file="countdown.json",
        environment={"COUNTDOWN_FROM": "3"},
        capabilities=frozenset({"min_p"}),
        tensors=frozenset({"beam_width"}),
        remedies={"lora_name": "count without it"},
    ),
"""
ADAPTER = '''
"""An engine whose output counts down to 1; COUNTDOWN_FROM is from its row of the table."""

import os

from runner.engines.protocol.messages import Ready, Statistics


class Countdown:
    def __init__(self, sink):
        self._sink = sink
        self.ready = Ready("countdown", vocab_size=10, max_sequence_length=20, max_batch_size=1)

    def submit(self, request):
        tokens = list(range(int(os.environ["COUNTDOWN_FROM"]), 0, -1))
        self._sink.tokens([(request.request_id, tokens)])
        self._sink.finished(request.request_id, "end")

    def cancel(self, request_id):
        pass

    def statistics(self):
        return Statistics(active=0, queued=0)

    def close(self):
        pass


def load(engine_dir, sink, options):
    return Countdown(sink)
'''
USE = """
import asyncio, json, socket, subprocess, sys
from pathlib import Path

import numpy as np
import pytest
from pydantic import TypeAdapter

from builder.config.config import BuildConfig
from builder.kinds import engine_plan
from cli.inspect import describe
from engine.directory import load
from engine.machine.preflight import check_runs_here
from engine.tar.manifest import EngineFacts, Manifest
from errors.build_config import ConflictingBuildKeys
from errors.requests import UnsupportedArgument
from errors.wire import ExitReason
from runner.engines.protocol.arrival import Arrived, announce
from runner.engines.protocol.client import EngineClient
from runner.engines.protocol.messages import Ready
from runner.engines.server.start import EngineStart
from runner.engines.server.supervisor import engine_environment
from runner.slot.request import parse_row

# What an engine directory and a manifest tell of it
directory = Path(sys.argv[1])
engine = load(directory)
assert engine.manifest.engine_kind == "countdown"
assert EngineFacts(engine_kind="countdown").model_dump_json()
check_runs_here(engine.manifest, (), None)
assert "any machine with a clock" in describe(engine.manifest)
assert "countdown" in json.dumps(BuildConfig.model_json_schema())
with pytest.raises(ConflictingBuildKeys, match="does not build"):
    engine_plan(BuildConfig(engine="countdown", model_id="a/b"))

# Through the engine server's process
socket_path, arrival = directory / "socket", directory / "arrival"
listener = socket.socket(socket.AF_UNIX)
listener.bind(str(socket_path))
listener.listen()
announce(arrival, Arrived((0,), 0))
exit_reason = ExitReason()
start = EngineStart("countdown", directory, {}, arrival, listener.fileno(), exit_reason.descriptor)
process = subprocess.Popen(
    [sys.executable, "-m", "runner.engines.server.main"],
    env=engine_environment("countdown"),
    stdin=subprocess.PIPE,
    pass_fds=(start.socket_fd, start.exit_reason_fd),
)
with process.stdin as stdin:
    stdin.write(start.encode())
inputs = {"input_ids": [[5, 6]], "input_lengths": [[2]], "request_output_len": [[9]]}
tensors = {name: np.array(value, np.int32) for name, value in inputs.items()}
ready = Ready("countdown", vocab_size=10, max_sequence_length=20, max_batch_size=1)
parsed = parse_row(tensors, 0, ready, includes_input=False)

async def ask():
    async with EngineClient(socket_path, 60, "countdown") as client:
        while not client.is_ready:
            await asyncio.sleep(0.01)
        return [token async for output in client.generate(parsed.submit) for token in output.tokens]

try:
    assert asyncio.run(ask()) == [3, 2, 1]
finally:
    process.terminate()
    process.wait()

# What the slot takes for it
parse_row({**tensors, "min_p": np.array([[0.5]])}, 0, ready, includes_input=False)
with pytest.raises(UnsupportedArgument, match="count without it"):
    parse_row({**tensors, "lora_name": np.array([[b"x"]], object)}, 0, ready, includes_input=False)
with pytest.raises(UnsupportedArgument, match="leave it out"):
    parse_row({**tensors, "return_log_probs": np.array([[True]])}, 0, ready, includes_input=False)
print("served")
"""


def test_an_unknown_kind_is_refused_with_the_names_of_the_known() -> None:
    with pytest.raises(
        InvalidSetting, match="engine kind must be one of tensorrt_llm, vllm, transformers, paced"
    ):
        find_kind("quantum")
    assert supports("vllm", "lora_name")
    assert not supports("paced", "logit_bias")


@pytest.mark.servers
def test_a_fifth_kind_is_one_row_and_one_folder(tmp_path: Path) -> None:
    tree, directory = tmp_path / "tree", tmp_path / "engine"
    for package in ("errors", "engine", "builder", "runner", "cli"):
        shutil.copytree(SOURCE_ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    table = tree / "engine" / "kinds.py"
    table.write_text(table.read_text().replace("_ROWS = (", f"_ROWS = ({ROW}", 1))
    folder = tree / "runner" / "engines" / "countdown"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "adapter.py").write_text(ADAPTER)
    directory.mkdir()
    for name in ("countdown.json", "tokenizer.json", "model.safetensors"):
        (directory / name).write_text("{}")
    (directory / "config.json").write_text('{"model_type": "countdown"}')
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
    command = [sys.executable, "-c", USE, str(directory)]
    done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
    assert done.stdout == "served\n", done.stderr


def test_no_other_module_compares_the_name_of_a_kind() -> None:
    found = [
        f"{path.relative_to(SOURCE_ROOT)}:{node.lineno}"
        for package in PACKAGES
        for path in sorted((SOURCE_ROOT / package).rglob("*.py"))
        if not str(path.relative_to(SOURCE_ROOT)).startswith(OWN)
        for node in comparisons(path)
    ]
    assert found == []


def comparisons(path: Path) -> Iterator[ast.expr]:
    """Comparisons with a kind's name, matches of one, and tables whose keys are names of several kinds."""
    text = path.read_text()
    nodes = ast.walk(ast.parse(text)) if any(kind in text for kind in KINDS) else ()
    for node in nodes:
        if isinstance(node, ast.Compare):
            operands = [node.left, *node.comparators]
            if any(names_in(operand) for operand in operands):
                yield node
        elif isinstance(node, ast.MatchValue) and names_in(node.value):
            yield node.value
        elif isinstance(node, ast.Dict) and len(set().union(*map(names_in, filter(None, node.keys)))) > 1:
            yield node


def names_in(node: ast.expr) -> set[str]:
    parts = node.elts if isinstance(node, ast.Tuple | ast.List | ast.Set) else [node]
    return {part.value for part in parts if isinstance(part, ast.Constant) and part.value in KINDS}


def test_the_search_for_comparisons_finds_them(tmp_path: Path) -> None:
    module = tmp_path / "module.py"
    module.write_text(
        'kind == "vllm"\nkind in ("paced", "x")\n{"vllm": 1, "paced": 2}\n'
        'kind = "vllm"\n{"vllm": 1, "x": 2}\n'
        'match kind:\n    case "paced":\n        pass\n'
    )
    assert [node.lineno for node in comparisons(module)] == [1, 2, 3, 7]
