"""The engines that servers run: given, of a known model, or vLLM's core over a stand-in executor."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from engine.cache.store import open_engine
from engine.kinds import ENGINE_ARGS_NAME
from engine.machine.root import SOURCE_ROOT
from perf.engines import built
from perf.peers.workloads import Workload

PLATFORM = SOURCE_ROOT / "tests" / "standins" / "vllm_platform"
_VLLM, _REPEATS = "vllm", "paced"
"""Kinds: the second one answers with the prompt, again and again."""


@dataclass(frozen=True)
class Engine:
    """``variables`` are for the environment of every server on it."""

    folder: Path
    kind: str
    python: str
    cache: Path
    vocab_size: int = 0
    """Size of a vocabulary in which each token is followed by the next one."""
    variables: Mapping[str, str] = field(default_factory=dict)
    step_file: Path | None = None
    """File that the stand-in executor reads its pace from."""

    @property
    def arguments(self) -> dict[str, Any]:
        """vLLM's arguments; those of another kind are empty."""
        path = self.folder / ENGINE_ARGS_NAME
        return dict(json.loads(path.read_text())) if path.exists() else {}

    def set_step(self, step_s: float) -> None:
        """Set the seconds of each of the stand-in's steps; a real engine's take as long as they take."""
        if self.step_file is not None:
            # Rewritten in place: the executor keeps it open.
            with self.step_file.open("r+") as file:
                file.write(f"{step_s:<16.6f}")

    def answer(self, ids: Sequence[int], count: int) -> list[int] | None:
        """Return the tokens that it makes of a prompt; None where they are unknown."""
        if self.kind == _REPEATS:
            return list(islice(cycle(ids), count))
        following = range(ids[-1] + 1, ids[-1] + 1 + count)
        return [token % self.vocab_size for token in following] if self.vocab_size else None


def given_engine(place: str, python: str, folder: Path) -> Engine:
    opened = open_engine(place, folder / "cache")
    return Engine(opened.path, opened.manifest.engine_kind, python, folder / "cache" / "engine_cache")


def known_engine(
    shape: str, python: str, folder: Path, workloads: Sequence[Workload], **more: object
) -> Engine:
    """Make a model of a real shape whose every token is known, and its vLLM engine.

    ``more``: vLLM's arguments. With ``load_format: dummy`` vLLM makes other weights, and no token is known.
    """
    is_known = more.get("load_format") != "dummy"
    model = folder / (f"model-{shape}" if is_known else f"model-{shape}-dummy")
    if not (model / "tokenizer_config.json").exists():
        command = [python, "-m", "tests.standins.known_model", str(model), shape]
        command += [] if is_known else ["dummy"]
        subprocess.run(command, cwd=SOURCE_ROOT, check=True)
    config = json.loads((model / "config.json").read_text())
    head = config["hidden_size"] // config["num_attention_heads"]
    most_tokens = max(2048, *(each.most_tokens for each in workloads))
    token_bytes = config["num_hidden_layers"] * config["num_key_value_heads"] * head * 2 * 2
    arguments = {
        "dtype": "bfloat16",
        "max_model_len": min(most_tokens, config["max_position_embeddings"]),
        "max_num_seqs": max(each.streams for each in workloads),
        "max_num_batched_tokens": 8192,
        "gpu_memory_utilization": 0.1,
        # It is given, so that several engines can start on a GPU at once.
        "kv_cache_memory_bytes": token_bytes * max(each.streams * each.most_tokens for each in workloads),
        **more,
    }
    opened = built_engine(folder, model, arguments)
    size = config["vocab_size"] if is_known else 0
    return Engine(opened, _VLLM, python, folder / "cache" / "engine_cache", size)


def standin_engine(
    python: str, folder: Path, model: Path = Path("examples/tiny/model"), **more: object
) -> Engine:
    """Make a tiny engine without a GPU: the next token is the next id. ``more``: vLLM's arguments."""
    arguments = {
        "max_num_seqs": 256,
        "max_model_len": 1024,
        "max_num_batched_tokens": 8192,
        "distributed_executor_backend": "tests.standins.vllm_executor.StandInExecutor",
        **more,
    }
    opened = built_engine(folder, model, arguments)
    config = json.loads((opened / "config.json").read_text())
    size = config.get("text_config", config)["vocab_size"]
    step_file = folder / "step"
    step_file.write_text(f"{0:<16.6f}")
    with_standins = folder / "python"
    path = f"$PYTHONPATH:{SOURCE_ROOT}:{PLATFORM}"
    real = shlex.quote(str(Path(shutil.which(python) or python).absolute()))
    with_standins.write_text(f'#!/bin/sh\nPYTHONPATH="{path}" exec {real} "$@"\n')
    with_standins.chmod(0o755)
    programs = (str(Path(sys.executable).parent), str(PLATFORM / "bin"), os.environ["PATH"])
    variables = {"PATH": ":".join(programs), "STANDIN_STEP_FILE": str(step_file)}
    cache = folder / "cache" / "engine_cache"
    return Engine(opened, _VLLM, str(with_standins), cache, size, variables, step_file)


def built_engine(folder: Path, model: Path, arguments: Mapping[str, object]) -> Path:
    """Build a vLLM engine in ``folder``, from a model inside it or an example; return the engine's folder."""
    if model.is_absolute():
        model = model.relative_to(folder)
    return built(folder, "engine", {"engine": "vllm", "model_path": str(model), "vllm": arguments})
