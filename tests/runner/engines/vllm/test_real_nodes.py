"""One engine of vLLM on two nodes: its own core, ranks and message queues, with stand-ins for GPUs.

Both nodes are on this machine, at two addresses of loopback; their ranks use Gloo.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from engine.machine.processes import session_members
from perf.peers.engine import standin_engine
from perf.servers import Stack
from runner.cog_server.launch import CogServer
from runner.settings.ports import free_ports
from tests.gpu.nodes import Nodes, compare, complete, is_ready, kill_all, lose_and_return, wait
from tests.runner.engines.vllm.test_real_core import PYTHON
from tests.runner.servers import is_running

pytestmark = [
    pytest.mark.servers,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not PYTHON.exists(), reason="vLLM's environment is not here"),
]
_WORKER = "tests.standins.vllm_worker.StandInWorker"


@pytest.fixture
def nodes(tmp_path: Path) -> Nodes:
    ranks = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp", "worker_cls": _WORKER}
    engine = standin_engine(str(PYTHON), tmp_path, **ranks)
    engine.set_step(0.002)
    (port,) = free_ports(1)
    return Nodes(engine.folder, engine.python, tmp_path, engine.variables, port)


@contextmanager
def stopped(server: CogServer) -> Iterator[None]:
    """Provide a context in which a server and all that it started are stopped (SIGSTOP)."""
    members = session_members(server.pid)
    for pid in members:
        os.kill(pid, signal.SIGSTOP)
    yield
    for pid in members:
        os.kill(pid, signal.SIGCONT)


def status(server: CogServer) -> str:
    return str(server.health().get("status"))


@pytest.mark.long
def test_a_node_that_is_lost_ends_the_requests_and_the_engine_comes_back(nodes: Nodes) -> None:
    tokenizer = Tokenizer.from_file(str(nodes.engine / "tokenizer.json"))
    (port,) = free_ports(1)
    follower = nodes.follower(port)
    try:
        with nodes.head() as stack:
            wait(lambda: status(follower) == "READY")
            compare(stack.openai_url, tokenizer, tokens=50, rounds=1)
            print(lose_and_return(nodes, stack, follower, port, tokenizer, tokens=900))
        follower = nodes.follower(port)
        with nodes.head() as stack:
            _stop_the_follower(stack, follower)
            compare(stack.openai_url, tokenizer, tokens=50, rounds=1)
            left = session_members(stack.server.pid)
            kill_all(stack.server)
            wait(lambda: not any(map(is_running, left)))
        wait(lambda: status(follower) != "READY")
        with nodes.head() as stack:
            compare(stack.openai_url, tokenizer, tokens=50, rounds=1)
            wait(lambda: status(follower) == "READY")
            below = session_members(follower.pid)
            follower.stop()
            wait(lambda: not any(map(is_running, below)))
    finally:
        follower.stop()


def _stop_the_follower(stack: Stack, follower: CogServer) -> None:
    """Stop the follower: a request ends with E2205. Once it goes on, the engine comes back."""
    ends: list[str] = []
    asking = threading.Thread(target=lambda: ends.append(complete(stack.openai_url, [400], 900)))
    with stopped(follower):
        asking.start()
        asking.join()
        assert ends == ["E2205"]
        wait(lambda: not is_ready(stack.openai_url))
    wait(lambda: is_ready(stack.openai_url))
