"""Hostile requests and connections by HTTP/1.1, at random."""

import re
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from random import Random
from typing import NamedTuple

from tests.attacks.bodies import VALUES, Endpoint, any_endpoint, body, size
from tests.hostile import HOST, request, send

Ports = dict[str, int]
Attack = Callable[["Ports", Random], Iterator["Outcome"]]
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3})")
_CODE = re.compile(rb"\bE[12]\d{3}\b")
_HOLD_S = 8.0
_CLOSE = "Connection: close"
_RESET = struct.pack("ii", 1, 0)
_STREAMS = (
    ("cog", "/predictions", b'{"input": {"prompt": "a b c", "max_tokens": 5000}}'),
    ("api", "/v1/completions", b'{"prompt": "a b c", "max_tokens": 5000, "stream": true, "n": 4}'),
    ("api", "/v1/completions", b'{"prompt": "a b c", "max_tokens": 5000}'),
    (
        "http",
        "/v2/models/ensemble/generate_stream",
        b'{"text_input": "a", "max_tokens": 5000, "stream": true}',
    ),
    ("http", "/v2/models/ensemble/generate", b'{"text_input": "a b c", "max_tokens": 5000}'),
)
"""Requests for long texts."""


class Outcome(NamedTuple):
    """What one hostile request or connection got."""

    port: str
    answer: str
    """Status and code, or what else happened."""
    seconds: float
    text: bytes = b""
    """The beginning of the answer."""


def outcome(port: str, answer: bytes, start_s: float) -> Outcome:
    status, code = _STATUS.match(answer), _CODE.search(answer)
    words = [status[1].decode() if status else "no HTTP" if answer else "closed"]
    words += [code[0].decode()] if code else []
    return Outcome(port, " ".join(words), time.monotonic() - start_s, answer[:4000])


def _sent(ports: Ports, port: str, data: bytes) -> Outcome:
    start_s = time.monotonic()
    return outcome(port, send(ports[port], data), start_s)


def _any_post(chance: Random, ports: Ports, most_bytes: int) -> tuple[Endpoint, bytes]:
    endpoint = any_endpoint(chance, ports)._replace(most_bytes=most_bytes)
    return endpoint, body(chance, chance.choice(list(VALUES)), endpoint)


def hostile_body(kind: str) -> Attack:
    def attack(ports: Ports, chance: Random) -> Iterator[Outcome]:
        endpoint = any_endpoint(chance, ports)
        yield _sent(ports, endpoint.port, request(endpoint.path, body(chance, kind, endpoint), _CLOSE))

    return attack


def slow(ports: Ports, chance: Random) -> Iterator[Outcome]:
    """Many connections whose heads and bodies arrive byte by byte."""
    endpoint, data = _any_post(chance, ports, 100_000)
    whole = request(endpoint.path, data)
    begin = chance.choice((0, 30, whole.index(b"\r\n\r\n") + 4, len(whole) // 2))
    yield _hold(ports, endpoint.port, size(chance, 200), whole[:begin], whole[begin:])


def unread(ports: Ports, chance: Random) -> Iterator[Outcome]:
    """Streams of clients that read nothing, or as many requests as fit; all vanish at last."""
    port, data = _stream(chance, ports)
    yield _hold(ports, port, size(chance, 40), data * chance.choice((1, 1, 1000)))


def vanishing(ports: Ports, chance: Random) -> Iterator[Outcome]:
    """Clients that read the beginning of a stream, or wait for a while for a whole text."""
    port, data = _stream(chance, ports)
    for _ in range(size(chance, 20)):
        start_s = time.monotonic()
        with socket.create_connection((HOST, ports[port]), timeout=_HOLD_S) as connection:
            answer = b""
            connection.settimeout(1)
            with suppress(OSError):
                connection.sendall(data)
                answer = connection.recv(chance.randint(1, 4000))
                time.sleep(chance.random() / 5)
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        yield outcome(port, answer, start_s)


def _stream(chance: Random, ports: Ports) -> tuple[str, bytes]:
    port, path, data = chance.choice([each for each in _STREAMS if each[0] in ports])
    return port, request(path, data, "Accept: text/event-stream")


def _hold(ports: Ports, port: str, count: int, begin: bytes = b"", rest: bytes = b"") -> Outcome:
    """Open so many connections, and send each ``begin`` and now and then a byte of the rest; none reads."""
    start_s = time.monotonic()
    refused = 0
    with ExitStack() as stack:
        connections = []
        for _ in range(count):
            connection = stack.enter_context(socket.socket())
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            connection.settimeout(_HOLD_S)
            try:
                connection.connect((HOST, ports[port]))
                connection.settimeout(0.01)
                connection.sendall(begin)
            except OSError:
                refused += 1
            connections.append(connection)
        for at in range(int(_HOLD_S)):
            for connection in connections:
                with suppress(OSError):
                    connection.send(rest[at : at + 1])
            time.sleep(1)
        for connection in connections:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    return Outcome(port, f"{'some' if refused else 'none'} refused or closed", time.monotonic() - start_s)


_OTHERS: tuple[Attack, ...] = (slow, unread, vanishing)
"""Beside those that ``tests/runner/http/test_hostile.py`` has one by one."""
ATTACKS: dict[str, Attack] = {
    **{f"body: {kind}": hostile_body(kind) for kind in VALUES},
    **{each.__name__.replace("_", " "): each for each in _OTHERS},
}
