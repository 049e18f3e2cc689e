"""Routers and load balancers of other projects, started in front of servers of this machine."""

import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlencode, urlsplit

import urllib3

from engine.machine.root import SOURCE_ROOT
from errors.settings import MissingRequirement
from errors.triton import StartFailed
from perf.session import started
from runner.settings.ports import LOOPBACK, free_ports

CONFIGURATIONS = SOURCE_ROOT / "deploy" / "balancers"
FLEET = SOURCE_ROOT / ".venv-fleet"
"""Environment of the programs that come from PyPI."""
_SYSTEM = "/usr/sbin:/usr/local/sbin"
"""Folders of servers, which not every user has in PATH."""
_READY_TIMEOUT_S = 120.0
_STOP_GRACE_S = 10.0
_POLL_S = 0.1
_LOG_CHARACTERS = 2000
_EXAMPLE_SERVER = re.compile(r"10\.0\.0\.1([12])(:|, port_value: )9000\b")
_EXAMPLE_PORT = re.compile(r"(:|port_value: )8080\b")

BALANCERS: Mapping[str, tuple[str, Sequence[str]]] = {
    "nginx": ("nginx.conf", ("nginx", "-e", "stderr", "-p", "{folder}", "-c", "{file}", "-g", "{globals}")),
    "haproxy": ("haproxy.cfg", ("haproxy", "-f", "{file}")),
    "envoy": ("envoy.yaml", ("envoy", "--base-id", "{port}", "--log-level", "warn", "-c", "{file}")),
    "caddy": ("Caddyfile", ("caddy", "run", "--adapter", "caddyfile", "--config", "{file}")),
}
"""Configuration and command by name. They have two servers."""
_NGINX_GLOBALS = "daemon off; pid {folder}/nginx.pid; error_log stderr warn;"
_ROUTER_OPTIONS = (
    "--health-check-endpoint /ready --health-check-interval-secs 1 --health-check-timeout-secs 2 "
    "--health-failure-threshold 2 --health-success-threshold 1 --worker-startup-check-interval 1 "
    "--cb-timeout-duration-secs 2"
)
ROUTERS: Mapping[str, Sequence[str]] = {
    # NOTE: the script `smg` may be that of sglang-router, which has one by the same name.
    "smg": f"python -m smg launch --disable-tokenizer-autoload --log-level warn {_ROUTER_OPTIONS}".split(),
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
    """Start one in front of the servers at ``urls``, and stop it. ``options``: of its command line.

    Raises MissingRequirement if it is not installed, and StartFailed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    port, metrics_port = free_ports(2)
    if name in BALANCERS:
        command = _balancer(name, urls, folder, port)
    else:
        command = [*ROUTERS[name], "--host", LOOPBACK, "--port", str(port), "--worker-urls", *urls]
        command += ["--prometheus-host", LOOPBACK, "--prometheus-port", str(metrics_port)]
    command = [find_program(command[0]), *command[1:], *options]
    log_path = folder / f"{name}.log"
    variables = {"HOME": str(folder), "NO_COLOR": "1"}
    with started(command, variables, log_path, _STOP_GRACE_S) as process:
        url, deadline_s = f"http://{LOOPBACK}:{port}", time.monotonic() + _READY_TIMEOUT_S
        while not _answers(f"{url}/v1/models"):
            if process.poll() is not None or time.monotonic() > deadline_s:
                reason = f"it did not answer within {_READY_TIMEOUT_S:g} s or ended"
                end = log_path.read_text(errors="replace")[-_LOG_CHARACTERS:]
                raise StartFailed(who=name, reason=reason, log_tail=end)
            time.sleep(_POLL_S)
        yield Router(url, process.pid, log_path)


def add_server(name: str, router: Router, url: str) -> None:
    """Make one of ROUTERS use one more server, and wait until it does. Raises StartFailed."""
    if name == "smg":
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
    raise StartFailed(
        who=f"{url} behind {name}", reason=reason, log_tail=answer.data.decode(errors="replace")
    )


def find_program(name: str) -> str:
    """Return the path of a router's program. Raises MissingRequirement."""
    is_debians = name in ("nginx", "haproxy")
    path = f"{os.environ.get('PATH', '')}:{_SYSTEM}" if is_debians else str(FLEET / "bin")
    found = shutil.which(name, path=path)
    if not found:
        remedy = f"install it: apt-get install {name}" if is_debians else "`make fleet` installs it"
        raise MissingRequirement(what=f"The program {name}", remedy=remedy)
    return found


def _balancer(name: str, urls: Sequence[str], folder: Path, port: int) -> list[str]:
    """Write a balancer's configuration, with these servers in place of its two; return the command."""
    file_name, command = BALANCERS[name]
    first, second = (urlsplit(url).port for url in urls)
    text = (CONFIGURATIONS / file_name).read_text()
    text = _EXAMPLE_SERVER.sub(
        lambda found: f"{LOOPBACK}{found[2]}{first if found[1] == '1' else second}", text
    )
    text = _EXAMPLE_PORT.sub(lambda found: f"{found[1]}{port}", text).replace("0.0.0.0", LOOPBACK)  # noqa: S104
    (folder / file_name).write_text(text)
    values = {
        "folder": str(folder),
        "file": str(folder / file_name),
        "port": str(port),
        "globals": _NGINX_GLOBALS.format(folder=folder),
    }
    return [each.format(**values) for each in command]


def _answers(url: str) -> bool:
    try:
        return urllib3.request("GET", url, timeout=2, retries=False).status == 200
    except urllib3.exceptions.HTTPError:
        return False
