"""Load balancers with the configurations of ``deploy/balancers``, started in front of two servers."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from engine.machine.root import SOURCE_ROOT
from errors.settings import MissingRequirement
from perf.routers import FLEET, Router, started
from runner.settings.ports import LOOPBACK, free_ports

CONFIGURATIONS = SOURCE_ROOT / "deploy" / "balancers"
_EXAMPLE_SERVER = re.compile(r"10\.0\.0\.1([12])(:|, port_value: )9000\b")
_EXAMPLE_PORT = re.compile(r"(:|port_value: )8080\b")
_SYSTEM = "/usr/sbin:/usr/local/sbin"
"""Folders of servers, which not every user has in PATH."""

BALANCERS: Mapping[str, tuple[str, Sequence[str]]] = {
    "nginx": ("nginx.conf", ("nginx", "-e", "stderr", "-p", "{folder}", "-c", "{file}", "-g", "{globals}")),
    "haproxy": ("haproxy.cfg", ("haproxy", "-f", "{file}")),
    "envoy": ("envoy.yaml", ("envoy", "--base-id", "{port}", "--log-level", "warn", "-c", "{file}")),
    "caddy": ("Caddyfile", ("caddy", "run", "--adapter", "caddyfile", "--config", "{file}")),
}
"""Configuration and command by name. They have two servers."""
_NGINX_GLOBALS = "daemon off; pid {folder}/nginx.pid; error_log stderr warn;"


@contextmanager
def balancer(name: str, urls: Sequence[str], folder: Path) -> Iterator[Router]:
    """Start one with its configuration of ``deploy/balancers``, with these servers in place of its two."""
    (port,) = free_ports(1)
    file_name, command = BALANCERS[name]
    first, second = (urlsplit(url).port for url in urls)
    text = (CONFIGURATIONS / file_name).read_text()
    text = _EXAMPLE_SERVER.sub(
        lambda found: f"{LOOPBACK}{found[2]}{first if found[1] == '1' else second}", text
    )
    text = _EXAMPLE_PORT.sub(lambda found: f"{found[1]}{port}", text).replace("0.0.0.0", LOOPBACK)
    (folder / file_name).write_text(text)
    values = {
        "folder": str(folder),
        "file": str(folder / file_name),
        "port": str(port),
        "globals": _NGINX_GLOBALS.format(folder=folder),
    }
    program = shutil.which(name, path=f"{FLEET / 'bin'}:{os.environ['PATH']}:{_SYSTEM}")
    if program is None:
        raise MissingRequirement(what=f"The program {name}", remedy=f"install it: apt-get install {name}")
    options = [each.format(**values) for each in command[1:]]
    with started(name, [program, *options], folder, port) as found:
        yield found
