"""Many clients of one engine server: none sees, delays or ends another's requests."""

import os
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from engine.machine.root import SOURCE_ROOT
from runner.engines.protocol.messages import Finished, Submit, Tokens
from tests.runner.engines.engine_server import EngineServerClient
from tests.runner.engines.listening import Listening
from tests.runner.engines.server import brittle
from tests.runner.engines.server.conftest import SharedServer, StartServer
from tests.runner.servers import wait_until

pytestmark = pytest.mark.servers

UNPACED = 0
MOST_TOKENS = 90_000
SILENT_CLIENT = """
import pathlib, sys
from runner.engines.protocol.messages import Submit
from tests.runner.engines.engine_server import EngineServerClient
client = EngineServerClient(pathlib.Path(sys.argv[1]))
client.send(*(Submit(number, [number], 90_000) for number in range(1, 9)))
print(flush=True)
sys.stdin.read()
"""
"""A client that asks for more than its socket holds, and reads nothing of it."""


def active(client: Listening) -> int:
    return client.statistics()[-1].active if client.statistics() else -1


@pytest.mark.parametrize("kind", ["paced", "paced_child"])
def test_equal_ids_of_several_clients_do_not_mix(shared_server: SharedServer, kind: str) -> None:
    server = shared_server(kind)
    clients = [Listening(server) for _ in range(8)]
    for number in range(1, 6):
        for index, client in enumerate(clients):
            client.send(Submit(number, [100 * index + number, 100 * index], 50 + number))
    for index, client in enumerate(clients):
        for number in range(1, 6):
            client.wait_for_end(number)
            expected = [100 * index + number, 100 * index] * 30
            assert client.tokens(number) == expected[: 50 + number]
            assert client.ends(number) == ["length"]
        client.close()


@pytest.mark.parametrize("kind", ["paced", "paced_child"])
def test_a_client_that_disconnects_cancels_what_it_asked_for_and_nothing_else(
    shared_server: SharedServer, kind: str
) -> None:
    server = shared_server(kind)
    with Listening(server) as stays:
        stays.send(Submit(1, [5, 6], MOST_TOKENS))
        with Listening(server) as leaves:
            leaves.send(*(Submit(number, [7], MOST_TOKENS) for number in range(1, 21)))
            stays.wait_for(lambda: active(stays) == 21)
        stays.wait_for(lambda: active(stays) == 1)
        assert stays.answer(Submit(2, [7, 8], 20)) == ([7, 8] * 10, "length")
        stays.cancel(1)
        assert stays.wait_for_end(1) == "cancelled"
        received = stays.tokens(1)
        assert received == ([5, 6] * len(received))[: len(received)]


def test_a_client_that_is_killed_cancels_what_it_asked_for(shared_server: SharedServer) -> None:
    server = shared_server("paced")
    with Listening(server) as stays, silent_client(server.path) as silent:
        stays.wait_for(lambda: active(stays) == 8)
        silent.kill()
        stays.wait_for(lambda: active(stays) == 0)


def silent_client(path: Path) -> subprocess.Popen[bytes]:
    client = subprocess.Popen(
        [sys.executable, "-c", SILENT_CLIENT, str(path)],
        env={**os.environ, "PYTHONPATH": str(SOURCE_ROOT)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    client.stdout.readline()
    return client


def test_a_client_that_does_not_read_holds_up_nobody(shared_server: SharedServer) -> None:
    server = shared_server("paced", tokens_per_second=UNPACED)
    with silent_client(server.path) as silent, Listening(server) as reads:
        for number in range(1, 11):
            tokens, end = reads.answer(Submit(number, [number], 10_000))
            assert (tokens, end) == ([number] * 10_000, "length")
        silent.kill()


def test_a_client_that_reads_late_gets_all(shared_server: SharedServer) -> None:
    server = shared_server("paced", tokens_per_second=UNPACED)
    late = server.connect()
    late.send(*(Submit(number, [number, 0], MOST_TOKENS) for number in range(1, 9)))
    with Listening(server) as reads:
        reads.wait_for(lambda: active(reads) == 0)
    outputs: dict[int, list[int]] = {number: [] for number in range(1, 9)}
    num_ends = 0
    while num_ends < 8:
        match late.receive():
            case Tokens(new=new):
                for number, tokens in new:
                    outputs[number] += tokens
            case Finished():
                num_ends += 1
    late.close()
    assert outputs == {number: [number, 0] * (MOST_TOKENS // 2) for number in range(1, 9)}


def test_a_client_that_does_not_read_is_disconnected_after_the_limit(start_server: StartServer) -> None:
    server = start_server("paced", tokens_per_second=20_000, variables={"TEST_STALL_TIMEOUT_S": "1"})
    stalled = server.connect()
    with Listening(server) as reads:
        reads.send(Submit(1, [5], MOST_TOKENS))
        # At this rate they run for long enough to be still there when the limit is over.
        stalled.send(*(Submit(number, list(range(50)), MOST_TOKENS) for number in range(1, 100)))
        reads.wait_for(lambda: any(each.active > 50 for each in reads.statistics()))
        reads.wait_for(lambda: active(reads) <= 1)
        reads.cancel(1)
        assert reads.wait_for_end(1) in ("cancelled", "length")
    read_to_the_end(stalled)
    stalled.close()
    with Listening(server) as client:
        assert client.answer(Submit(1, [3], 2)) == ([3, 3], "length")


def read_to_the_end(client: EngineServerClient) -> None:
    with suppress(EOFError, ConnectionError):
        while True:
            client.receive()


def test_what_a_round_has_for_a_client_is_one_message(shared_server: SharedServer) -> None:
    server = shared_server("brittle")
    clients = [Listening(server) for _ in range(3)]
    for client in clients:
        client.send(*(Submit(number, [brittle.HOLD], 9) for number in range(1, 9)))
    with Listening(server) as other:
        other.wait_for(lambda: active(other) == 24)
        other.send(Submit(1, [brittle.RELEASE], 1))
        for client in clients:
            for number in range(1, 9):
                client.wait_for_tokens(number)
            tokens = [message for message in client.messages if isinstance(message, Tokens)]
            assert [sorted(number for number, _ in each.new) for each in tokens] == [list(range(1, 9))]
            client.close()


@pytest.mark.parametrize(
    "data",
    [
        struct.pack("<I", 3) + b"abc",
        struct.pack("<I", 0xFFFFFFFF),
        struct.pack("<I", 100_000) + b"\x91" * 100_000,
    ],
    ids=["garbage", "huge", "nested too deep"],
)
def test_a_malformed_or_huge_frame_closes_that_connection_alone(
    shared_server: SharedServer, data: bytes
) -> None:
    server = shared_server("paced")
    malformed = server.connect()
    with Listening(server) as other:
        other.send(Submit(1, [5], MOST_TOKENS))
        malformed.send(Submit(1, [6], MOST_TOKENS))
        other.wait_for(lambda: active(other) == 2)
        malformed.socket.sendall(data)
        read_to_the_end(malformed)
        malformed.close()
        other.wait_for(lambda: active(other) == 1)
        assert other.answer(Submit(2, [6], 20)) == ([6] * 20, "length")
        other.cancel(1)
        assert other.wait_for_end(1) == "cancelled"


def test_clients_come_and_go_in_great_numbers(shared_server: SharedServer) -> None:
    server = shared_server("paced")
    with Listening(server) as stays:
        for number in range(300):
            client = EngineServerClient(server.path)
            client.send(Submit(1, [number], MOST_TOKENS))
            client.close()
        assert stays.answer(Submit(1, [5], 3)) == ([5] * 3, "length")
        stays.wait_for(lambda: active(stays) == 0)
    descriptors = Path(f"/proc/{server.process.pid}/fd")
    wait_until(lambda: sum(1 for _ in descriptors.iterdir()) < 100)
