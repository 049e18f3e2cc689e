"""How long from the runner's start to READY: without the engine's cache, and twice with it."""

from __future__ import annotations

import shutil

from perf.prove_gpu.proof import Proof
from perf.prove_gpu.servers import stack


def run_starts(proof: Proof) -> None:
    shutil.rmtree(proof.engine_cache, ignore_errors=True)
    proof.engine_dir()  # Unpacked before: that time is not the engine's.
    for name in ("first", "second", "third"):
        with stack(proof, f"start-{name}") as started:
            proof.facts[f"{name}_start_s"] = started.start_s
            proof.say(f"{name} start: READY after {started.start_s:.1f} s")
    size_bytes = sum(path.stat().st_size for path in proof.engine_cache.rglob("*") if path.is_file())
    proof.facts["engine_cache_bytes"] = size_bytes
    proof.say(f"the engine's cache: {size_bytes / 1e6:.0f} MB")
