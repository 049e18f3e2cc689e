"""How long from the runner's start to READY: without the engine's cache, and twice with it."""

from __future__ import annotations

import shutil

import servers
from proof import Proof


def run_starts(proof: Proof) -> None:
    shutil.rmtree(proof.engine_cache, ignore_errors=True)
    proof.engine_dir()  # Unpacked before: that is no matter of the engine.
    for name in ("first", "second", "third"):
        with servers.stack(proof, f"start-{name}", {"COG_WEIGHTS": str(proof.tar)}) as stack:
            proof.facts[f"{name}_start_s"] = stack.seconds
            proof.say(f"{name} start: READY after {stack.seconds:.1f} s")
    size_bytes = sum(path.stat().st_size for path in proof.engine_cache.rglob("*") if path.is_file())
    proof.facts["engine_cache_bytes"] = size_bytes
    proof.say(f"the engine's cache: {size_bytes / 1e6:.0f} MB")
