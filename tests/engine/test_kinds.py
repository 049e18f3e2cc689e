"""The table of engine kinds: a kind is one row and one folder, and no other module knows its name."""

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
from tests.runner.paced_engine import make_tokenizer

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
    ),
"""
ADAPTER = '''
"""An engine whose output counts down to 1; COUNTDOWN_FROM is from its row of the table."""

import os

from runner.engines.protocol.messages import Ready, Statistics


class Countdown:
    def __init__(self, sink):
        self._sink = sink
        self.ready = Ready("countdown", vocab_size=1000, max_sequence_length=20, max_batch_size=1)

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


def test_an_unknown_kind_is_refused_with_the_names_of_the_known() -> None:
    known = "tensorrt_llm, tensorrt_llm_pytorch, vllm, llama_cpp, transformers, paced"
    with pytest.raises(InvalidSetting, match=f"engine kind must be one of {known}"):
        find_kind("quantum")
    assert supports("vllm", "lora_name")
    assert not supports("paced", "logit_bias")


@pytest.mark.servers
def test_a_further_kind_is_one_row_and_one_folder(tmp_path: Path) -> None:
    tree, directory = tmp_path / "tree", tmp_path / "engine"
    for package in ("errors", "engine", "builder", "runner", "cli", "triton_model_repo"):
        shutil.copytree(SOURCE_ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(SOURCE_ROOT / "pyproject.toml", tree)
    table = tree / "engine" / "kinds.py"
    table.write_text(table.read_text().replace("_ROWS = (", f"_ROWS = ({ROW}", 1))
    folder = tree / "runner" / "engines" / "countdown"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "adapter.py").write_text(ADAPTER)
    directory.mkdir()
    tokenizer = make_tokenizer()
    tokenizer.save(str(directory / "tokenizer.json"))
    for name in ("countdown.json", "model.safetensors", "tokenizer_config.json"):
        (directory / name).write_text("{}")
    (directory / "config.json").write_text('{"model_type": "x", "max_position_embeddings": 20}')
    (directory / "build.yaml").write_text("{engine: countdown, model_id: a/b}")

    def cog_triton(*arguments: object) -> tuple[str, str]:
        environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONSAFEPATH": "1"}
        command = [sys.executable, "-m", "cli", *map(str, arguments)]
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, check=False)
        return done.stdout, done.stderr

    output, error = cog_triton("inspect", directory)
    assert "any machine with a clock" in output, error
    assert "does not build" in cog_triton("plan", directory / "build.yaml")[1]
    output, error = cog_triton("generate", directory, "hi", "--max-tokens", "9")
    assert output == tokenizer.decode([3, 2, 1]) + "\n", error


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
