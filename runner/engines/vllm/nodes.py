"""An engine on several machines (nodes): how they meet, and how each notices that another one is lost.

The head has vLLM's engine core and ranks; each follower (``runner.stack.follower``) has ranks only. Processes
of vLLM wait for each other for many minutes, and do not compare their configurations. So each follower has
a connection to the head. By it the head compares both configurations and tells the port where the ranks meet.
When it closes, or nothing comes by it for a while, both end their engine, which is started again.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import logging
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from engine.kinds import ENGINE_ARGS_NAME
from engine.tar.manifest import MANIFEST_NAME
from errors.coded_error import CodedError
from errors.engines import NodeRefused, NodesMissing, VllmEngineDied, VllmStartFailed
from errors.settings import InvalidSetting
from errors.wire import WireError
from runner.engines.protocol.options import KV_EVENTS_OPTION
from runner.engines.vllm.node_link import Begin, End, Join, Link

_RETRY_S = 1.0
_CONNECT_S = 10.0
_ACCEPT_S = 0.2
_TOLD_S = 15.0
_STALE_S = 60.0
"""Time for which the head's name may still lead to another machine."""
_SIOCGIFADDR = 0x8915
"""Linux's request for the address of an interface."""
_IDENTIFYING = (MANIFEST_NAME, ENGINE_ARGS_NAME, "config.json")

log = logging.getLogger("cog_triton.engine")


@dataclass(frozen=True)
class Nodes:
    """``host`` and ``port``: where the head listens. ``timeout_s``: limit of waiting for the others."""

    count: int
    rank: int
    host: str
    port: int
    timeout_s: float

    @property
    def head(self) -> str:
        return f"the head at {self.host} port {self.port}"


def read_nodes(options: Mapping[str, str]) -> Nodes:
    """Read the nodes of an engine, as ``Settings.node_options`` tells them."""
    host, _, port = options["head_address"].rpartition(":")
    count, rank = int(options["nodes"]), int(options["node_rank"])
    return Nodes(count, rank, host.strip("[]"), int(port), float(options["nodes_timeout_s"]))


def node_facts(engine_dir: Path, arguments: Mapping[str, Any], nodes: Nodes) -> dict[str, str]:
    """Return what must be the same on all nodes, by its name. Raises E1006."""
    if arguments.get("data_parallel_size", 1) > 1:
        expected = "1 with data_parallel_size, whose replicas are on one machine"
        raise InvalidSetting(name="NODES", expected=expected, value=nodes.count)
    facts = {"NODES": str(nodes.count), "vLLM": version("vllm")}
    for path in (engine_dir / name for name in _IDENTIFYING):
        if path.is_file():
            facts[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    for name, value in arguments.items():
        # The head alone has events of the cache. Ranks load adapters from the path that the head names.
        if name != KV_EVENTS_OPTION and (name != "model" or arguments.get("enable_lora")):
            facts[name] = json.dumps(value, sort_keys=True)
    return facts


def lead(
    engine_dir: Path,
    options: Mapping[str, str],
    arguments: Mapping[str, Any],
    broken: Callable[[CodedError], None],
    is_serving: Callable[[], bool],
) -> dict[str, Any]:
    """Wait for the followers. Return vLLM's arguments. ``broken`` ends this process when one is lost later.

    Raises E1006 or E2208.
    """

    def lose(reason: str) -> None:
        remedy = "see the log of that machine, and start both again"
        broken(
            VllmEngineDied(reason=reason) if is_serving() else VllmStartFailed(reason=reason, remedy=remedy)
        )

    nodes = read_nodes(options)
    return Head(nodes, node_facts(engine_dir, arguments, nodes), lose).gather()


class Head:
    """The head's end of all connections. ``on_lost`` takes why a follower that had begun is lost."""

    def __init__(self, nodes: Nodes, facts: Mapping[str, str], on_lost: Callable[[str], None]) -> None:
        self._nodes = nodes
        self._facts = facts
        self._on_lost = on_lost
        self._links: dict[int, Link] = {}
        self._lock = threading.Lock()
        self._has_begun = False
        self._last_refusal = ""

    def gather(self) -> dict[str, Any]:
        """Wait for the followers and let them begin. Return vLLM's arguments. Raises E1006 or E2208."""
        deadline_s, told_s = time.monotonic() + self._nodes.timeout_s, 0.0
        with self._listen(deadline_s) as listener:
            listener.settimeout(_ACCEPT_S)
            while missing := self._missing():
                reason = f"waiting at {self._nodes.host} port {self._nodes.port} for NODE_RANK {missing}"
                if time.monotonic() > deadline_s:
                    raise NodesMissing(timeout_s=self._nodes.timeout_s, reason=reason + self._last_refusal)
                if time.monotonic() - told_s > _TOLD_S:
                    log.info("%s", reason)
                    told_s = time.monotonic()
                with suppress(TimeoutError):
                    connection, _ = listener.accept()
                    threading.Thread(target=self._serve, args=(connection,), daemon=True).start()
        port = _free_port()
        for link in self._links.values():
            with suppress(OSError):  # Its thread reports it.
                link.send(Begin(port))
        own = next(iter(self._links.values())).own_address
        return engine_arguments(self._nodes, own, own, port)

    def _missing(self) -> str:
        """Return the ranks that have not joined; if there is none, all begin."""
        with self._lock:
            missing = [str(rank) for rank in range(1, self._nodes.count) if rank not in self._links]
            self._has_begun = not missing
        return ", ".join(missing)

    def _listen(self, deadline_s: float) -> socket.socket:
        told_s = 0.0
        stale_until_s = min(deadline_s, time.monotonic() + _STALE_S)
        while True:
            try:
                family, *_, address = socket.getaddrinfo(
                    self._nodes.host, self._nodes.port, type=socket.SOCK_STREAM
                )[0]
                return socket.create_server(address[:2], family=family)
            except OSError as exc:
                # A name may become known, or known as this machine's, only after the start, as in Kubernetes.
                limit_s = stale_until_s if exc.errno == errno.EADDRNOTAVAIL else 0.0
                if time.monotonic() < (deadline_s if isinstance(exc, socket.gaierror) else limit_s):
                    if time.monotonic() - told_s > _TOLD_S:
                        log.info("HEAD_ADDRESS %s: %s; trying again", self._nodes.host, exc.strerror)
                        told_s = time.monotonic()
                    time.sleep(_RETRY_S)
                    continue
                expected = f"an address of the head and a free port ({exc.strerror})"
                value = f"{self._nodes.host}:{self._nodes.port}"
                raise InvalidSetting(name="HEAD_ADDRESS", expected=expected, value=value) from exc

    def _serve(self, connection: socket.socket) -> None:
        """Take a follower, or refuse it, and wait until it is lost."""
        link = Link(connection)
        try:
            join = link.receive()
            if not isinstance(join, Join):
                raise ConnectionError("it did not join")
            if (refusal := self._add(join, link)) is not None:
                self._last_refusal = f"; refused: {refusal.error.sentence}"
                log.warning("%s", refusal.error.sentence)
                link.send(refusal)
                raise ConnectionError("it was refused")
        except OSError:
            link.close()
            return
        name = f"node {join.rank} ({link.peer_address})"
        log.info("%s has joined", name)
        reason = f"{name} is lost: {link.why_ended()}"
        link.close()
        with self._lock:
            if not self._has_begun:
                del self._links[join.rank]
                log.warning("%s", reason)
                return
        self._on_lost(reason)

    def _add(self, join: Join, link: Link) -> End | None:
        """Add a follower. Return how it is refused, if it is."""
        ours, theirs = self._facts, join.facts
        differing = [name for name in (*ours, *theirs) if ours.get(name) != theirs.get(name)]
        with self._lock:
            other = self._links.get(join.rank)
            if differing:
                here, there = (facts.get(differing[0], "none") for facts in (ours, theirs))
                reason = f"its {differing[0]} is {there}, the head's is {here}"
            elif not 0 < join.rank < self._nodes.count:
                reason = f"NODE_RANK must be from 1 to {self._nodes.count - 1}"
            elif other is not None:
                reason = f"{other.peer_address} has this NODE_RANK"
            else:
                self._links[join.rank] = link
                return None
        # The other one may be a follower that was lost, which is not known at once.
        is_final = other is None or bool(differing)
        return End(WireError.of(NodeRefused(rank=join.rank, reason=reason)), is_final)


def join_head(nodes: Nodes, facts: Mapping[str, str]) -> tuple[Link, dict[str, Any]]:
    """Join the head, and wait until all nodes have. Return vLLM's arguments, too. Raises E2207 or E2208."""
    deadline_s, told_s = time.monotonic() + nodes.timeout_s, 0.0
    while True:
        try:
            return _try_to_join(nodes, facts)
        except OSError as exc:
            reason = f"{nodes.head} could not be joined ({exc.strerror or exc})"
        if time.monotonic() > deadline_s:
            raise NodesMissing(timeout_s=nodes.timeout_s, reason=reason)
        if time.monotonic() - told_s > _TOLD_S:
            log.info("%s; trying again", reason)
            told_s = time.monotonic()
        time.sleep(_RETRY_S)


def _try_to_join(nodes: Nodes, facts: Mapping[str, str]) -> tuple[Link, dict[str, Any]]:
    """Join once. Raises OSError if it may succeed later, E2207 if not."""
    link = Link(socket.create_connection((nodes.host, nodes.port), timeout=_CONNECT_S))
    try:
        link.send(Join(nodes.rank, dict(facts)))
        match link.receive():
            case Begin(port=port):
                return link, engine_arguments(nodes, link.own_address, link.peer_address, port)
            case End(error=error, is_final=is_final):
                restored = error.restore()
                raise restored if is_final else ConnectionError(restored.sentence)
            case _:
                raise ConnectionError("an unexpected message came")
    except BaseException:
        link.close()
        raise


def engine_arguments(nodes: Nodes, own: str, head: str, port: int) -> dict[str, Any]:
    """Return vLLM's arguments for this node, and set the variables that name its network.

    ``own``, ``head``: addresses of this machine and of the head, as the nodes see them.
    """
    # NOTE: vLLM would connect to a public address to find this machine's own; Gloo would look up its name.
    os.environ.setdefault("VLLM_HOST_IP", own)
    if (name := _interface(own)) is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", name)
    return {
        "nnodes": nodes.count,
        "node_rank": nodes.rank,
        "master_addr": head,
        "master_port": port,
        "distributed_executor_backend": "mp",
    }


def _interface(address: str) -> str | None:
    """Return the network interface with this IPv4 address. All of 127.0.0.0/8 is the loopback interface's."""
    wanted = "127.0.0.1" if address.startswith("127.") else address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
        for _, name in socket.if_nameindex():
            with suppress(OSError):  # It has no IPv4 address.
                answer = fcntl.ioctl(asking, _SIOCGIFADDR, struct.pack("256s", name.encode()))
                if socket.inet_ntoa(answer[20:24]) == wanted:
                    return name
    return None


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])
