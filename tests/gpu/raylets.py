"""Serve a known model by vLLM's Ray executor on two raylets of this machine, and lose one.

    .venv/bin/python -m tests.gpu.raylets --engine-python .venv-vllm/bin/python --work .cache/raylets

The engine environment needs ``ray``. Each raylet has one GPU. Every answer is compared. Exit status 1 if one
is not exact, or if the runner does not come back after a raylet was killed. ``--standin`` needs no GPU: the
workers of vLLM are then stand-ins with known tokens.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from engine.machine.processes import session_members
from engine.machine.root import SOURCE_ROOT
from perf.__main__ import exit_status
from perf.peers.engine import Engine, built_engine, standin_engine
from perf.servers import whole_stack
from perf.table import table
from runner.settings.ports import free_ports
from tests.gpu import nodes

_STANDIN = {"worker_cls": "tests.standins.vllm_worker.StandInWorker"}
_RAYLET_START_S = 600
_ANY_PORTS = ("--min-worker-port=0", "--max-worker-port=0")
_OF_RAY = b"ray::RayWorkerProc"
"""The name that Ray gives a process of vLLM's executor."""


@dataclass
class Raylets:
    """Raylets on this machine; the first one has the cluster's state."""

    python: str
    folder: Path
    port: int
    variables: dict[str, str]

    @property
    def address(self) -> str:
        return f"{nodes.HEAD}:{self.port}"

    @contextmanager
    def raylet(self, gpu: int) -> Iterator[subprocess.Popen[bytes]]:
        """Start a raylet with this GPU; kill it and all that it started in the end."""
        place = ["--head", f"--port={self.port}", "--include-dashboard=false", f"--temp-dir={self.folder}"]
        command = [self.python, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
        command += ["--num-gpus=1", "--num-cpus=2", *_ANY_PORTS, f"--object-store-memory={200 << 20}"]
        command += place if gpu == 0 else [f"--address={self.address}"]
        environment = {**os.environ, **self.variables, "CUDA_VISIBLE_DEVICES": str(gpu)}
        environment["RAY_raylet_start_wait_time_s"] = str(_RAYLET_START_S)
        environment["RAY_agent_register_timeout_ms"] = str(1000 * _RAYLET_START_S)
        log_path = self.folder / f"raylet-{gpu}.log"
        with log_path.open("wb") as log:
            process = subprocess.Popen(
                command, env=environment, stdout=log, stderr=log, cwd=self.folder, start_new_session=True
            )
        try:
            while "Ray runtime started" not in (text := log_path.read_text()):
                assert process.poll() is None, text[-2000:]
                time.sleep(0.1)
            yield process
        finally:
            kill(process)


def kill(raylet: subprocess.Popen[bytes]) -> None:
    for pid in session_members(raylet.pid):
        os.kill(pid, 9)
    raylet.wait()


def main() -> int:
    parser = nodes.parser_of(__doc__)
    parser.add_argument("--eager", action="store_true", help="without torch.compile and CUDA graphs")
    parser.add_argument("--standin", action="store_true", help="without a GPU")
    options = parser.parse_args()
    if not options.standin:
        nodes.require_two_gpus()
    folder = options.work.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    engine = _engine(options, folder)
    tokenizer = Tokenizer.from_file(str(engine.folder / "tokenizer.json"))
    (port,) = free_ports(1)
    raylets = Raylets(engine.python, folder, port, {"PYTHONPATH": str(SOURCE_ROOT)})
    rows = []

    def tell(*row: str) -> None:
        rows.append(list(row))
        print(*row, sep=" | ", file=sys.stderr, flush=True)

    variables = {**engine.variables, "RAY_ADDRESS": raylets.address, "ENGINE_DIR": str(engine.folder)}
    with ExitStack() as opened:
        opened.enter_context(raylets.raylet(0))
        lost = opened.enter_context(raylets.raylet(1))
        with whole_stack(folder, variables, engine_python=engine.python, timeout_s=900) as stack:
            speed = nodes.compare(stack.openai_url, tokenizer)
            tell("two raylets", f"{stack.start_s:.0f}", f"{speed:,.0f}", f"all exact; ranks: {_ranks()}")
            ends = _lose(lost, stack.openai_url)
            refused_s = nodes.wait(lambda: not nodes.is_ready(stack.openai_url), 60)
            tell("a raylet killed", "", "", f"{ends}; not ready after {refused_s:.1f} s")
            opened.enter_context(raylets.raylet(1))
            back_s = nodes.wait(lambda: nodes.is_ready(stack.openai_url))
            nodes.compare(stack.openai_url, tokenizer, tokens=64, rounds=1)
            tell("another raylet", f"{back_s:.0f}", "", f"all exact; ranks: {_ranks()}")
        gone_s = nodes.wait(lambda: not _ranks(), 60)
        tell("the runner stopped", "", "", f"no rank left on the raylets after {gone_s:.1f} s")
    print(table(["run", "READY after, s", "tokens/s", "seen"], rows))
    return 0


def _engine(options: argparse.Namespace, folder: Path) -> Engine:
    ranks = {"tensor_parallel_size": 2, "distributed_executor_backend": "ray"}
    if options.standin:
        engine = standin_engine(options.engine_python, folder, **ranks, **_STANDIN)
        engine.set_step(0.002)
        return engine
    model = folder / "model"
    if not (model / "tokenizer_config.json").exists():
        command = [options.engine_python, "-m", "tests.standins.known_model", str(model), options.shape]
        subprocess.run(command, cwd=SOURCE_ROOT, check=True)
    arguments = {**nodes.ARGUMENTS, **ranks, "enforce_eager": options.eager}
    opened = built_engine(folder, model, arguments)
    cache = folder / "cache" / "engine_cache"
    return Engine(opened, "vllm", options.engine_python, cache, variables=nodes.VARIABLES)


def _lose(raylet: subprocess.Popen[bytes], url: str) -> dict[str, int]:
    """Kill a raylet under load. Return how many requests ended in which way."""
    ends: Counter[str] = Counter()

    def ask(number: int) -> None:
        text = nodes.complete(url, [300 + number, 400], 900)
        ends[text if text.startswith("E2") else "complete" if len(text) > 99 else text] += 1

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(nodes.STREAMS)]
    for each in threads:
        each.start()
    threads[0].join(0.5)
    kill(raylet)
    for each in threads:
        each.join()
    return dict(ends)


def _ranks() -> int:
    """Return the number of processes of vLLM's executor under all raylets."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):  # It has ended.
            found += _OF_RAY in path.read_bytes()
    return found


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
