"""One proof: its folder, the model and the engine that it is about, and what has been found."""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builder.build import build
from engine.cache.store import open_engine
from engine.machine.root import SOURCE_ROOT

_PROMPT_ROOM_TOKENS = 144
"""A prompt has about 128 tokens, and vLLM keeps whole blocks."""
_LEAST_ROOM_TOKENS = 70_000
"""For the 32 long streams of the check of cancelling."""
_PROGRAM_S = 400.0


class Proof:
    """The work folder and what has been found."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.work: Path = options.work.resolve()
        self.model = self.work / f"model-{options.shape}"
        self.workload = self.work / f"workload-{options.shape}.json"
        self.tar = self.work / f"engine-{options.shape}.tar"
        self.rows: list[dict[str, Any]] = []
        self.findings: list[str] = []
        self.facts: dict[str, Any] = {"shape": options.shape, "gpus": options.tensor_parallel}
        self.began_s = time.time()

    @property
    def arguments(self) -> dict[str, Any]:
        """vLLM's. The size of the KV cache is given, so that several engines can start on a GPU at once."""
        options = self.options
        return {
            "dtype": "bfloat16",
            "max_model_len": 2048,
            "max_num_seqs": max(options.streams),
            "max_num_batched_tokens": 8192,
            "gpu_memory_utilization": 0.1,
            "kv_cache_memory_bytes": self._kv_cache_bytes() // options.tensor_parallel,
            "enable_prefix_caching": False,
            **({"attention_backend": options.attention_backend} if options.attention_backend else {}),
            **{name: json.loads(value) for name, value in (each.split("=", 1) for each in options.argument)},
            **({"tensor_parallel_size": options.tensor_parallel} if options.tensor_parallel > 1 else {}),
        }

    def _kv_cache_bytes(self) -> int:
        """Room for all streams of the largest load at once."""
        config = json.loads((self.model / "config.json").read_text())
        head = config["hidden_size"] // config["num_attention_heads"]
        token_bytes = config["num_hidden_layers"] * config["num_key_value_heads"] * head * 2 * 2
        load_tokens = max(self.options.streams) * (_PROMPT_ROOM_TOKENS + self.options.tokens)
        return int(max(load_tokens, _LEAST_ROOM_TOKENS) * token_bytes)

    @property
    def engine_cache(self) -> Path:
        return self.work / "cache" / "engine_cache"

    def engine_dir(self, tar: Path | None = None) -> Path:
        return open_engine(str(tar or self.tar), self.work / "cache").path

    def make_model(self, folder: Path, *arguments: str) -> None:
        """Have known_model.py make a model in ``folder``, unless it is there."""
        if (folder / "following.json").exists():
            return
        program = self.program("known_model", folder, "--tokenizer", self.options.tokenizer, *arguments)
        subprocess.run(program, cwd=SOURCE_ROOT, check=True)

    def build(self, tar: Path, config: Mapping[str, Any]) -> None:
        """Have our builder make an engine.tar. Models are named by folders of the work folder."""
        # A build config is YAML, and so is JSON.
        path = tar.with_suffix(".yaml")
        path.write_text(json.dumps(config))
        started_s = time.monotonic()
        build(path, tar, report=lambda line: None)
        size_gb = tar.stat().st_size / 1e9
        self.say(f"{tar.name}: {size_gb:.2f} GB, built in {time.monotonic() - started_s:.1f} s")

    def program(self, name: str, *arguments: object) -> list[str]:
        """The command of a module beside this one, in the engine's Python; it runs in the checkout."""
        return [self.options.engine_python, "-m", f"perf.prove_gpu.{name}", *map(str, arguments)]

    def run_program(self, name: str, *arguments: object) -> Any:
        """Run such a program; the JSON of its last line."""
        done = subprocess.run(
            self.program(name, *arguments),
            cwd=SOURCE_ROOT,
            capture_output=True,
            text=True,
            timeout=_PROGRAM_S,
            check=False,
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-1500:])
        return json.loads(done.stdout.splitlines()[-1])

    def say(self, *words: object) -> None:
        print(f"[{time.time() - self.began_s:6.1f}s]", *words, flush=True)

    def expect(self, name: str, holds: bool) -> None:
        self.say("ok" if holds else "FAILED", name)
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
