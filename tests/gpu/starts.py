"""Start an engine of a known model several times, and vLLM's own server on the same weights.

    .venv/bin/python -m tests.gpu.starts --engine-python .venv-vllm/bin/python --work .cache/starts --shape 8b

The table has the seconds to READY and to the first token, and how they divide into the parts of a start.
Before each start the weights are dropped from the page cache, and the time to read them from the disk is
measured, too.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from datetime import datetime, timezone
from pathlib import Path

from tokenizers import Tokenizer

from engine.machine.root import SOURCE_ROOT
from perf.__main__ import exit_status
from perf.peers.engine import Engine, built_engine
from perf.peers.vllm_serve import vllm_serve
from perf.servers import whole_stack
from perf.table import table
from tests.gpu.nodes import complete, gpus_used_mib, parser_of, positive

_MARKS = {
    "core": r"Initializing a V1 LLM engine",
    "weights": r"Loading weights took",
    "model": r"Model loading took",
    "compiled": r"torch\.compile took|Directly load|Compiling a graph for|and initial profiling/warmup",
    "KV cache": r"KV cache size: ",
    "graphs": r"Graph capturing finished",
    "engine": r"init engine \(profile",
    "engine server": r"engine ready: Ready",
}
"""Lines of vLLM's log that end a part of a start; the last one of each counts."""
_BLOCK_BYTES = 16 << 20


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--starts", type=positive, default=3, help="number of starts of our stack")
    peers_help = "vllm serve's number of API servers, or rust: two starts of each"
    parser.add_argument("--peers", nargs="*", type=_peer, default=["1", "rust"], help=peers_help)
    parser.add_argument("--plan", action="store_true", help="a last start without VLLM_ENABLE_STARTUP_PLAN")
    options = parser.parse_args()
    gpus_used_mib()  # Raises MissingRequirement without a GPU.
    folder = options.work.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    engine = _engine(options, folder)
    weights = sorted(engine.folder.glob("*.safetensors"))
    known = Tokenizer.from_file(str(engine.folder / "tokenizer.json")).decode([401])
    rows: list[list[str]] = []

    def measure(name: str, log: Path, start: AbstractContextManager[str]) -> None:
        _forget(weights)
        began_s, began = time.monotonic(), datetime.now(timezone.utc)
        with start as url:
            ready_s = time.monotonic() - began_s
            text = complete(url, [300, 400], 1)
            first_s = time.monotonic() - began_s
        assert text == known, text
        rows.append(
            [name, f"{ready_s:.1f}", f"{first_s:.1f}", _parts(log.read_text(errors="replace"), began)]
        )
        print(*rows[-1], sep=" | ", file=sys.stderr, flush=True)

    for number in range(1, options.starts + 1):
        measure(f"start {number}", folder / f"start-{number}.log", _ours(engine, folder, number))
    if options.plan:
        own = {"VLLM_ENABLE_STARTUP_PLAN": "0"}
        measure("without a plan", folder / "no-plan.log", _ours(engine, folder, "no-plan", own))
    for peer in options.peers:
        for number in (1, 2):
            log = folder / f"vllm-{peer}-{number}.log"
            measure(f"vllm serve, {peer}, start {number}", log, _vllm(engine, log, peer))
    size = sum(each.stat().st_size for each in weights)
    print(table(["start", "READY after, s", "first token after, s", "at, s"], rows))
    print(f"\n{size / 1e9:.1f} GB of weights: {_read_s(weights):.1f} s from the disk")
    return 0


def _peer(text: str) -> str:
    return text if text == "rust" else str(positive(text))


def _engine(options: argparse.Namespace, folder: Path) -> Engine:
    model = folder / "model"
    if not (model / "tokenizer_config.json").exists():
        command = [options.engine_python, "-m", "tests.standins.known_model", str(model), options.shape]
        subprocess.run(command, cwd=SOURCE_ROOT, check=True)
    opened = built_engine(folder, model, {"dtype": "bfloat16", "max_model_len": 4096})
    return Engine(opened, "vllm", options.engine_python, folder / "cache" / "engine_cache")


@contextmanager
def _ours(engine: Engine, folder: Path, name: object, more: dict[str, str] | None = None) -> Iterator[str]:
    variables = {"ENGINE_DIR": str(engine.folder), "VLLM_USE_FLASHINFER_SAMPLER": "0", **(more or {})}
    log_name = f"start-{name}" if isinstance(name, int) else str(name)
    with whole_stack(folder, variables, engine_python=engine.python, log_name=log_name) as stack:
        yield stack.openai_url


@contextmanager
def _vllm(engine: Engine, log: Path, peer: str) -> Iterator[str]:
    own = {"VLLM_USE_RUST_FRONTEND": "1"} if peer == "rust" else {}
    own["VLLM_CACHE_ROOT"] = str(log.parent / f"vllm-cache-{peer}")
    with vllm_serve(engine, log, 1 if peer == "rust" else int(peer), own) as (url, _):
        yield url


def _parts(log: str, began: datetime) -> str:
    """Return when the parts of a start ended. vLLM's log has the time of day to the second, ours to more."""
    found = {}
    for line in log.splitlines():
        for name, mark in _MARKS.items():
            if re.search(mark, line) and (at := _time(line, began)) is not None:
                found[name] = (at - began).total_seconds()
    return ", ".join(f"{name} {at:.1f}" for name, at in found.items())


def _time(line: str, began: datetime) -> datetime | None:
    if line.startswith("{"):
        return datetime.fromisoformat(json.loads(line)["timestamp"].replace("Z", "+00:00"))
    match = re.search(r"\d\d-\d\d \d\d:\d\d:\d\d", line)
    if match is None:
        return None
    local = datetime.strptime(f"{began.astimezone().year}-{match[0]}", "%Y-%m-%d %H:%M:%S")
    return local.astimezone(timezone.utc)


def _forget(paths: list[Path]) -> None:
    """Have the system drop what it keeps of files in memory."""
    for path in paths:
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _read_s(paths: list[Path]) -> float:
    """Read the files from the disk, and return how long it takes."""
    _forget(paths)
    start_s = time.monotonic()
    for path in paths:
        with path.open("rb", buffering=0) as file:
            while file.read(_BLOCK_BYTES):
                pass
    return time.monotonic() - start_s


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
