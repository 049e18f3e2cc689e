"""The machines of an engine meet, compare what they were started with, and notice that one is lost."""

import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from errors.coded_error import CodedError
from errors.engines import NodeRefused, NodesMissing, VllmEngineDied, VllmStartFailed
from errors.settings import InvalidSetting
from errors.wire import WireError
from runner.engines.vllm import node_link
from runner.engines.vllm import nodes as module
from runner.engines.vllm.node_link import End, Join, Link
from runner.engines.vllm.nodes import Head, Nodes, join_head, lead, node_facts, read_nodes
from runner.settings.ports import free_ports
from runner.settings.settings import load_settings
from tests.runner.servers import wait_until

FACTS = {"NODES": "3", "vLLM": "0.33.0", "dtype": '"bfloat16"'}


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY_S", 0.05)
    monkeypatch.setattr(module, "version", lambda name: "1")  # They are in the engine's environment.
    for name in ("VLLM_HOST_IP", "GLOO_SOCKET_IFNAME"):
        monkeypatch.setenv(name, "")  # So that it is restored.
        monkeypatch.delenv(name)


@pytest.fixture
def place() -> Callable[..., Nodes]:
    (port,) = free_ports(1)

    def make(rank: int, count: int = 3, timeout_s: float = 60.0, host: str = "127.0.0.1") -> Nodes:
        return Nodes(count, rank, host, port, timeout_s)

    return make


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


Place = Callable[..., Nodes]


def test_all_nodes_begin_at_one_port_once_all_have_joined(place: Place, threads: ThreadPoolExecutor) -> None:
    first = threads.submit(join_head, place(1), FACTS)
    head = threads.submit(Head(place(0), FACTS, lambda reason: None).gather)
    second = threads.submit(join_head, place(2), FACTS)
    (link_1, follower_1), (link_2, follower_2) = first.result(), second.result()
    with closing(link_1), closing(link_2):
        leading = head.result()
        assert leading["master_port"] == follower_1["master_port"] == follower_2["master_port"]
        assert [each["node_rank"] for each in (leading, follower_1, follower_2)] == [0, 1, 2]
        assert {each["master_addr"] for each in (leading, follower_1, follower_2)} == {"127.0.0.1"}
        assert os.environ["GLOO_SOCKET_IFNAME"] == "lo"
        assert os.environ["VLLM_HOST_IP"] == "127.0.0.1"


@pytest.mark.parametrize(
    ("facts", "told"),
    [
        ({**FACTS, "vLLM": "0.32.0"}, "its vLLM is 0.32.0, the head's is 0.33.0"),
        ({**FACTS, "NODES": "2"}, "its NODES is 2, the head's is 3"),
        ({**FACTS, "quantization": '"fp8"'}, """its quantization is "fp8", the head's is none"""),
    ],
)
def test_a_node_that_differs_is_refused_at_once_and_the_head_tells_whom_it_lacks(
    place: Place, threads: ThreadPoolExecutor, facts: dict[str, str], told: str
) -> None:
    head = threads.submit(Head(place(0, timeout_s=2.0), FACTS, lambda reason: None).gather)
    with pytest.raises(NodeRefused, match=told):
        join_head(place(1), facts)
    with pytest.raises(NodesMissing, match=f"NODE_RANK 1, 2; refused: Node 1 .*{told}"):
        head.result()


def test_a_rank_that_is_taken_is_free_once_the_other_node_is_lost(
    place: Place, threads: ThreadPoolExecutor
) -> None:
    gathering = Head(place(0), FACTS, lambda reason: None)
    head = threads.submit(gathering.gather)
    first = Link(socket.create_connection(("127.0.0.1", listening(place(0).port))))
    first.send(Join(1, FACTS))
    wait_until(lambda: gathering._missing() == "2")
    with pytest.raises(NodesMissing, match=r"127\.0\.0\.1 has this NODE_RANK"):
        join_head(place(1, timeout_s=0.5), FACTS)
    first.close()
    others = [threads.submit(join_head, place(rank), FACTS) for rank in (1, 2)]
    for each in others:
        each.result()[0].close()
    head.result()


def listening(port: int) -> int:
    """Return the port, once something listens there."""

    def is_listening() -> bool:
        with socket.socket() as asking:
            return asking.connect_ex(("127.0.0.1", port)) == 0

    wait_until(is_listening)
    return port


def test_a_rank_that_no_node_has_is_refused(place: Place, threads: ThreadPoolExecutor) -> None:
    head = threads.submit(Head(place(0, timeout_s=2.0), FACTS, lambda reason: None).gather)
    with pytest.raises(NodeRefused, match="NODE_RANK must be from 1 to 2"):
        join_head(place(7), FACTS)
    with pytest.raises(NodesMissing):
        head.result()


def test_a_head_that_is_away_is_waited_for_and_then_told(place: Place) -> None:
    with pytest.raises(NodesMissing, match=r"the head at 127\.0\.0\.1 .* \(Connection refused\)"):
        join_head(place(1, timeout_s=0.2), FACTS)


def test_a_head_whose_address_is_another_machines_is_refused(place: Place) -> None:
    with pytest.raises(InvalidSetting, match="HEAD_ADDRESS"):
        Head(place(0, timeout_s=0.2, host="192.0.2.1"), FACTS, lambda reason: None).gather()


@pytest.fixture
def joined(place: Place, threads: ThreadPoolExecutor, tmp_path: Path) -> Iterator[tuple[Link, Any, Any]]:
    """Return the follower's link, the errors that the head ends with, and what makes it serve."""
    errors: Future[CodedError] = Future()
    is_serving = threading.Event()
    options = {
        "nodes": "2",
        "node_rank": "0",
        "head_address": f"127.0.0.1:{place(0).port}",
        "nodes_timeout_s": "60",
    }
    nodes = read_nodes(options)
    facts = node_facts(tmp_path, {"model": "x"}, nodes)
    head = threads.submit(lead, tmp_path, options, {"model": "y"}, errors.set_result, is_serving.is_set)
    link, _ = join_head(place(1, count=2), facts)
    with closing(link):
        head.result()
        yield link, errors, is_serving


def test_a_node_that_is_lost_ends_the_heads_engine(joined: tuple[Link, Any, Any]) -> None:
    link, errors, is_serving = joined
    is_serving.set()
    link.close()
    error = errors.result(60)
    assert isinstance(error, VllmEngineDied)
    assert "node 1 (127.0.0.1) is lost: the connection was closed" in str(error)


def test_a_node_that_does_not_start_tells_the_head_why(joined: tuple[Link, Any, Any]) -> None:
    link, errors, _ = joined
    link.send(End(WireError.of(VllmStartFailed(reason="No available memory", remedy="add some"))))
    error = errors.result(60)
    assert isinstance(error, VllmStartFailed)
    assert "node 1 (127.0.0.1) is lost: vLLM's engine core did not start (No available memory)" in str(error)


@contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
    ):
        yield one, other


def test_a_silent_end_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_link, "_SILENCE_S", 0.2)
    with connected() as (ours, _), pytest.raises(ConnectionError, match=r"nothing came for 0\.2 s"):
        Link(ours).receive()


@pytest.mark.parametrize("line", [b'{"type": "Other"}\n', b"not JSON\n", b"x" * (2 << 20)])
def test_what_is_no_message_ends_the_connection(line: bytes) -> None:
    with connected() as (ours, theirs), ThreadPoolExecutor(1) as sending:
        sending.submit(theirs.sendall, line)
        link = Link(ours)
        with pytest.raises(ConnectionError):
            link.receive()
        link.close()


def test_replicas_are_on_one_machine(tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="NODES must be 1 with data_parallel_size"):
        node_facts(tmp_path, {"data_parallel_size": 2}, Nodes(2, 0, "127.0.0.1", 1, 1.0))


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"NODES": "2", "NODE_RANK": "2", "HEAD_ADDRESS": "a"}, "NODE_RANK must be less than NODES"),
        ({"NODE_RANK": "1"}, "NODE_RANK must be less than NODES, which is 1"),
        ({"NODES": "2"}, "HEAD_ADDRESS must be HOST"),
        ({"NODES": "0"}, "NODES must be a whole number of at least 1"),
        ({"NODES": "2", "HEAD_ADDRESS": "a:0"}, "HEAD_ADDRESS must be HOST"),
        ({"NODES": "2", "HEAD_ADDRESS": "http://a"}, "HEAD_ADDRESS must be HOST"),
    ],
)
def test_settings_that_fit_no_nodes_are_refused(variables: dict[str, str], told: str, tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match=told):
        load_settings({"HOME": str(tmp_path), **variables})


def test_the_options_of_the_engine_are_those_of_the_settings(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    alone = load_settings(home)
    assert alone.node_options(9.0) == {}
    for address, host, port in (("a.b", "a.b", 29500), ("[::1]:5", "::1", 5), ("10.0.0.1:7", "10.0.0.1", 7)):
        settings = load_settings({**home, "NODES": "2", "NODE_RANK": "1", "HEAD_ADDRESS": address})
        assert read_nodes(settings.node_options(9.0)) == Nodes(2, 1, host, port, 9.0)
        assert settings.engine_cache_dir == alone.engine_cache_dir / "of-2-nodes"
