"""Routers of other projects, started in front of servers of this machine."""

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode

import urllib3

from engine.machine.root import SOURCE_ROOT
from errors.settings import MissingRequirement
from errors.triton import StartFailed
from perf.session import serving
from runner.settings.ports import LOOPBACK, free_ports

FLEET = SOURCE_ROOT / ".venv-fleet"
"""Environment of the programs that come from PyPI."""
_READY_TIMEOUT_S = 120.0
_POLL_S = 0.1

_ROUTER_OPTIONS = (
    "--health-check-endpoint /ready --health-check-interval-secs 1 --health-check-timeout-secs 2 "
    "--health-failure-threshold 2 --health-success-threshold 1 --worker-startup-check-interval 1 "
    "--cb-timeout-duration-secs 2"
)
ROUTERS: Mapping[str, Sequence[str]] = {
    # NOTE: the script `smg` may be that of sglang-router, which has one by the same name.
    "smg": f"python -m smg launch --disable-tokenizer-autoload --log-level warn {_ROUTER_OPTIONS}".split(),
    "sglang-router": f"python -m sglang_router.launch_router --log-level warn {_ROUTER_OPTIONS}".split(),
    "vllm-router": f"vllm-router --log-level warning {_ROUTER_OPTIONS}".split(),
}
"""Command by name. They know policies, and servers are added to them while they run."""


class Router(NamedTuple):
    """A router that answers; its processes are in ``session``."""

    url: str
    session: int
    log_path: Path


@contextmanager
def router(name: str, urls: Sequence[str], folder: Path, *options: str) -> Iterator[Router]:
    """Start the router ``name`` in front of the servers at ``urls``, and stop it at the end.

    ``options``: of its command line. Raises StartFailed, and MissingRequirement if it is not installed.
    """
    port, metrics_port = free_ports(2)
    program, *fixed = ROUTERS[name]
    command = [find_program(program), *fixed, "--host", LOOPBACK, "--port", str(port), "--worker-urls", *urls]
    command += ["--prometheus-host", LOOPBACK, "--prometheus-port", str(metrics_port)]
    with started(name, [*command, *options], folder, port) as found:
        yield found


@contextmanager
def started(name: str, command: Sequence[str], folder: Path, port: int) -> Iterator[Router]:
    """Start the program of a router or balancer that listens at ``port``, and stop it at the end."""
    folder.mkdir(parents=True, exist_ok=True)
    url, log_path = f"http://{LOOPBACK}:{port}", folder / f"{name}.log"
    variables = {"HOME": str(folder), "NO_COLOR": "1"}
    with serving(command, variables, log_path, f"{url}/v1/models", _READY_TIMEOUT_S) as session:
        yield Router(url, session, log_path)


def add_server(name: str, router: Router, url: str) -> None:
    """Make one of ROUTERS use one more server, and wait until it does. Raises StartFailed."""
    try:
        _add_server(name, router, url)
    except (urllib3.exceptions.HTTPError, ValueError, KeyError) as exc:
        raise StartFailed(who=f"{url} behind {name}", reason=repr(exc), log_tail="") from exc


def _add_server(name: str, router: Router, url: str) -> None:
    if name != "vllm-router":
        answer = urllib3.request("POST", f"{router.url}/workers", json={"url": url})
    else:
        answer = urllib3.request("POST", f"{router.url}/add_worker?{urlencode({'url': url})}")
    reason, deadline_s = f"the router answered {answer.status}", time.monotonic() + _READY_TIMEOUT_S
    while answer.status < HTTPStatus.BAD_REQUEST and time.monotonic() < deadline_s:
        reason = f"the router did not find it ready within {_READY_TIMEOUT_S:g} s"
        workers = urllib3.request("GET", f"{router.url}/workers").json()["workers"]
        if any(each["url"] == url and each["is_healthy"] for each in workers):
            return
        time.sleep(_POLL_S)
    told = answer.data.decode(errors="replace")
    raise StartFailed(who=f"{url} behind {name}", reason=reason, log_tail=told)


def find_program(name: str) -> str:
    """Return the path of a router's program. Raises MissingRequirement."""
    found = shutil.which(name, path=FLEET / "bin")
    if not found:
        raise MissingRequirement(what=f"The program {name}", remedy="`make fleet` installs it")
    return found
