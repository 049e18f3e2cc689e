"""Serve a known model by vLLM on two GPUs of this machine as if they were two machines, and lose one.

    .venv/bin/python -m tests.gpu.nodes --engine-python .venv-vllm/bin/python --work .cache/nodes

Each node has one GPU and a loopback address. NCCL is told that the nodes are two hosts, so that it uses
sockets; ``--nvlink`` lets it see that they share a host. First, one runner serves the same engine with tensor
parallel 2, to compare. Every answer is checked. Exit status 1 if one is not exact, or if the runner does not
come back after its follower was killed.
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import urllib3
from tokenizers import Tokenizer

from engine.machine.processes import session_members
from engine.machine.root import SOURCE_ROOT
from errors.settings import MissingRequirement
from perf.__main__ import exit_status
from perf.options import Options
from perf.peers.engine import built_engine
from perf.servers import MODEL, Stack, whole_stack
from perf.table import table
from runner.cog_server.launch import CogServer
from runner.settings.ports import free_ports

HEAD, FOLLOWER = "127.0.0.1", "127.0.0.2"
STREAMS, TOKENS = 64, 256
_START_S = 900.0
ARGUMENTS: dict[str, Any] = {
    "dtype": "bfloat16",
    "max_model_len": 2048,
    "max_num_seqs": STREAMS,
    "max_num_batched_tokens": 2048,
    "gpu_memory_utilization": 0.1,
    "kv_cache_memory_bytes": 1 << 30,
    "tensor_parallel_size": 2,
    # NOTE: vLLM would take two nodes of one host for one, and share memory of GPUs that each can't see.
    "disable_custom_all_reduce": True,
}
VARIABLES = {
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_ALLREDUCE_USE_SYMM_MEM": "0",
    "NCCL_NVLS_ENABLE": "0",
    "NCCL_SOCKET_IFNAME": "lo",
    "NCCL_IB_DISABLE": "1",
}


@dataclass(frozen=True)
class Nodes:
    """An engine, and what both of its nodes are started with."""

    engine: Path
    python: str
    folder: Path
    variables: Mapping[str, str]
    port: int
    are_hosts: bool = True
    """True: NCCL takes the nodes for two hosts."""

    def of(self, rank: int) -> dict[str, str]:
        """Return the variables of a node."""
        own = {
            "NODES": "2",
            "NODE_RANK": str(rank),
            "HEAD_ADDRESS": f"{HEAD}:{self.port}",
            "VLLM_HOST_IP": (HEAD, FOLLOWER)[rank],
            "CUDA_VISIBLE_DEVICES": str(rank),
            "FAILURE_LIMIT": "20",
        }
        if self.are_hosts:
            own["NCCL_HOSTID"] = f"node-{rank}"
        return {"ENGINE_DIR": str(self.engine), **self.variables, **own}

    @contextmanager
    def head(self) -> Iterator[Stack]:
        with whole_stack(self.folder, self.of(0), engine_python=self.python, log_name="head") as stack:
            yield stack

    def follower(self, port: int) -> CogServer:
        """Start a follower; the thread that calls this must live as long."""
        extra = {
            "COG_WEIGHTS": "",
            "COG_TRITON_CACHE": str(self.folder / "cache"),
            "COG_TRITON_ENGINE_PYTHON": self.python,
            **self.of(1),
        }
        log_path = self.folder / "follower.log"
        return CogServer("runner", host=FOLLOWER, port=port, log_path=log_path, extra=extra)


def complete(url: str, ids: list[int], tokens: int = TOKENS) -> str:
    """Return the text, or the error's code or kind."""
    body = {"model": MODEL, "prompt": ids, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    try:
        answer = urllib3.request(
            "POST", f"{url}/v1/completions", json=body, timeout=_START_S, retries=False
        ).json()
    except (urllib3.exceptions.HTTPError, ValueError) as exc:
        return type(exc).__name__
    return str(answer["error"]["code"] if "error" in answer else answer["choices"][0]["text"])


def compare(url: str, tokenizer: Tokenizer, *, tokens: int = TOKENS, rounds: int = 2) -> float:
    """Send prompts at once, ``rounds`` times. Return the last round's tokens/s. All must be exact."""
    prompts = [[300 + number * 7, *range(400 + number, 500 + number)] for number in range(STREAMS)]
    size = tokenizer.get_vocab_size()
    known = [tokenizer.decode([(ids[-1] + 1 + n) % size for n in range(tokens)]) for ids in prompts]
    took_s = 0.0
    with ThreadPoolExecutor(STREAMS) as threads:
        for _ in range(rounds):
            start_s = time.monotonic()
            found = list(threads.map(lambda ids: complete(url, ids, tokens), prompts))
            took_s = time.monotonic() - start_s
            exact = sum(text == expected for text, expected in zip(found, known, strict=True))
            assert exact == STREAMS, f"{exact} of {STREAMS} exact; {found[0]!r}"
    return STREAMS * tokens / took_s


def is_ready(url: str) -> bool:
    try:
        return urllib3.request("GET", f"{url}/ready", timeout=5.0, retries=False).status == 200
    except urllib3.exceptions.HTTPError:
        return False


def wait(condition: Any, limit_s: float = _START_S) -> float:
    """Wait until the condition holds, and return after how long. Raises AssertionError."""
    start_s = time.monotonic()
    while not condition():
        assert time.monotonic() - start_s < limit_s, "it takes too long"
        time.sleep(0.05)
    return time.monotonic() - start_s


def kill_all(server: CogServer) -> None:
    """Kill a server and all that it started, as a machine that loses its power."""
    for pid in session_members(server.pid):
        os.kill(pid, signal.SIGKILL)
    wait(lambda: not session_members(server.pid) or server.exit_code() is not None)


def lose_and_return(
    nodes: Nodes, stack: Stack, follower: CogServer, port: int, tokenizer: Tokenizer, tokens: int = 1500
) -> list[str]:
    """Kill the follower under load; start another. Return what came of the requests, and the times."""
    ends: Counter[str] = Counter()

    def ask(number: int) -> None:
        text = complete(stack.openai_url, [300 + number, 400], tokens)
        ends[text if text.startswith("E2") else "complete" if len(text) > 99 else text] += 1

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(STREAMS)]
    for each in threads:
        each.start()
    time.sleep(0.5)
    start_s = time.monotonic()
    kill_all(follower)
    for each in threads:
        each.join()
    ended_s = time.monotonic() - start_s
    refused_s = wait(lambda: not is_ready(stack.openai_url), 30)
    restarted_s = time.monotonic()
    other = nodes.follower(port)
    try:
        wait(lambda: is_ready(stack.openai_url))
        took_s = time.monotonic() - restarted_s
        other.wait_ready(30)
        compare(stack.openai_url, tokenizer, tokens=64, rounds=1)
        return [
            f"requests ended {ended_s:.1f} s after the kill: {dict(ends)}",
            f"not ready {ended_s + refused_s:.1f} s after it",
            f"ready again {took_s:.0f} s after the other follower's start, all exact",
        ]
    finally:
        other.stop()


def gpus_used_mib() -> list[int]:
    """Return the memory in use on each GPU of this machine. Raises MissingRequirement."""
    command = ["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]
    if not shutil.which(command[0]):
        raise MissingRequirement(what="nvidia-smi", remedy="use a machine with an NVIDIA GPU")
    return [int(each) for each in subprocess.check_output(command, text=True).split()]


def require_two_gpus() -> None:
    if len(gpus_used_mib()) < 2:
        raise MissingRequirement(what="A second GPU", remedy="use a machine with two")


def parser_of(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the options of all programs here that serve a known model."""
    parser = Options("", description)
    parser.prog = f"python -m tests.gpu.{Path(sys.argv[0]).stem}"
    python_help = "the Python of an environment with vLLM"
    parser.add_argument("--engine-python", required=True, type=_program, metavar="FILE", help=python_help)
    work_help = "for models, engines, caches and logs; it is kept"
    parser.add_argument("--work", type=_folder, required=True, metavar="FOLDER", help=work_help)
    parser.add_argument(
        "--shape", choices=("1b", "8b", "tiny"), default="1b", help="shape of the known model"
    )
    return parser


def _folder(text: str) -> Path:
    if Path(text).exists() and not Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a folder")
    return Path(text)


def _program(text: str) -> str:
    if not os.access(text, os.X_OK) or Path(text).is_dir():
        raise argparse.ArgumentTypeError(f"{text!r} is not a program (`make vllm` makes .venv-vllm)")
    return str(Path(text).absolute())


def positive(text: str) -> int:
    """Return an option's number. Raises ArgumentTypeError for one below 1."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1")
    return int(text)


def main() -> int:
    parser = parser_of(__doc__)
    parser.add_argument("--eager", action="store_true", help="without torch.compile and CUDA graphs")
    parser.add_argument("--nvlink", action="store_true", help="let NCCL see that the nodes share a host")
    options = parser.parse_args()
    require_two_gpus()
    work = options.work.absolute()
    model = work / "model"
    work.mkdir(parents=True, exist_ok=True)
    if not (model / "tokenizer_config.json").exists():
        command = [options.engine_python, "-m", "tests.standins.known_model", str(model), options.shape]
        subprocess.run(command, cwd=SOURCE_ROOT, check=True)
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    engine = built_engine(work, model, ARGUMENTS | ({"enforce_eager": True} if options.eager else {}))
    rows = []

    def tell(*row: str) -> None:
        rows.append(list(row))
        print(*row, sep=" | ", file=sys.stderr, flush=True)

    one = {**VARIABLES, "ENGINE_DIR": str(engine), "CUDA_VISIBLE_DEVICES": "0,1"}
    with whole_stack(work, one, engine_python=options.engine_python) as stack:
        speed = compare(stack.openai_url, tokenizer)
        tell("one runner, tensor parallel 2", f"{stack.start_s:.0f}", f"{speed:,.0f}", "all exact")
    nodes_port, port = free_ports(2)
    nodes = Nodes(engine, options.engine_python, work, VARIABLES, nodes_port, not options.nvlink)
    follower = nodes.follower(port)
    try:
        with nodes.head() as stack:
            follower.wait_ready(30)
            speed = compare(stack.openai_url, tokenizer)
            tell("two nodes", f"{stack.start_s:.0f}", f"{speed:,.0f}", "all exact")
            for line in lose_and_return(nodes, stack, follower, port, tokenizer):
                tell("follower killed", "", "", line)
    finally:
        follower.stop()
    tell("all ended", "", "", f"MiB of GPU memory in use: {', '.join(map(str, gpus_used_mib()))}")
    print(table(["run", "READY after, s", "tokens/s", "seen"], rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(exit_status(main))
