"""One proof: its folder, the model and the engine that it is about, and what has been found."""

import argparse
import json
import subprocess
import time
from pathlib import Path
from typing import Any

from builder.build import build
from engine.cache.store import open_engine
from engine.machine.root import SOURCE_ROOT
from perf.prove_gpu.known_load import write_workload

_PROMPT_ROOM_TOKENS = 144
"""A prompt has about 128 tokens, and vLLM keeps whole blocks."""
_LEAST_ROOM_TOKENS = 70_000
"""For the 32 long streams of the check of cancelling."""


class Proof:
    """The work folder and what has been found."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.work: Path = options.work.resolve()
        self.model = self.work / f"model-{options.shape}"
        self.workload = self.work / f"workload-{options.shape}.json"
        self.tar = self.work / f"engine-{options.shape}.tar"
        self.engine_cache = self.work / "cache" / "engine_cache"
        self.rows: list[dict[str, Any]] = []
        self.findings: list[str] = []
        self.facts: dict[str, Any] = {"shape": options.shape}
        self._start_s = time.time()

    @property
    def arguments(self) -> dict[str, Any]:
        """vLLM's. The size of the KV cache is given, so that several engines can start on a GPU at once."""
        given = dict(self.options.argument)
        return {
            "dtype": "bfloat16",
            "max_model_len": 2048,
            "max_num_seqs": max(self.options.streams),
            "max_num_batched_tokens": 8192,
            "gpu_memory_utilization": 0.1,
            "kv_cache_memory_bytes": self._kv_cache_bytes() // given.get("tensor_parallel_size", 1),
            "enable_prefix_caching": False,
            **given,
        }

    def _kv_cache_bytes(self) -> int:
        """Room for all streams of the largest load at once."""
        config = json.loads((self.model / "config.json").read_text())
        head = config["hidden_size"] // config["num_attention_heads"]
        token_bytes = config["num_hidden_layers"] * config["num_key_value_heads"] * head * 2 * 2
        load_tokens = max(self.options.streams) * (_PROMPT_ROOM_TOKENS + self.options.tokens)
        return int(max(load_tokens, _LEAST_ROOM_TOKENS) * token_bytes)

    def make_engine(self) -> None:
        """The known model, unless it is there, its workload, and its engine.tar."""
        self.work.mkdir(parents=True, exist_ok=True)
        if not (self.model / "following.json").exists():
            command = self.program("known_model", self.model, self.options.shape)
            subprocess.run(command, cwd=SOURCE_ROOT, check=True)
        lengths = (64, self.options.tokens)
        write_workload(self.workload, self.model, streams=max(self.options.streams), lengths=lengths)
        # A build config is YAML, and so is JSON.
        config = self.tar.with_suffix(".yaml")
        config.write_text(
            json.dumps({"engine": "vllm", "model_path": self.model.name, "vllm": self.arguments})
        )
        build(config, self.tar, report=self.say)

    def engine_dir(self) -> Path:
        return open_engine(str(self.tar), self.work / "cache").path

    def program(self, name: str, *arguments: object) -> list[str]:
        """The command of a module beside this one, in the engine's Python; it runs in the checkout."""
        return [self.options.engine_python, "-m", f"perf.prove_gpu.{name}", *map(str, arguments)]

    def say(self, line: str) -> None:
        print(f"[{time.time() - self._start_s:6.1f}s] {line}", flush=True)

    def expect(self, name: str, holds: bool) -> None:
        self.say(f"{'ok' if holds else 'FAILED'} {name}")
        if not holds:
            self.findings.append(name)

    def row(self, result: dict[str, Any]) -> None:
        self.rows.append(result)
        self.say(json.dumps(result))
        if result["exact"] != result["streams"] and result["target"] != "openai":
            self.findings.append(
                f"{result['target']}: {result['exact']} of {result['streams']} streams are exact"
            )

    def save(self) -> None:
        result = {"facts": self.facts, "rows": self.rows, "findings": self.findings}
        self.options.result.write_text(json.dumps(result, indent=1))
