"""A virtual environment made by uv of what lock files pin, with pip's settings. Standard library only."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from engine.live_line import LiveLine
from errors.settings import MissingRequirement
from scripts import machine

ROOT = Path(__file__).resolve().parent.parent

# pip's settings, and the variables that tell uv the same.
_SETTINGS = {
    "index-url": "UV_DEFAULT_INDEX",
    "extra-index-url": "UV_INDEX",
    "find-links": "UV_FIND_LINKS",
    "no-index": "UV_OFFLINE",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
    "client-cert": "SSL_CLIENT_CERT",
    "proxy": "ALL_PROXY",
    "timeout": "UV_HTTP_TIMEOUT",
    "default-timeout": "UV_HTTP_TIMEOUT",
}
# Settings of the caller's shell that would make a Python or pip work elsewhere than in its environment.
_MISLEADING = ("PYTHONHOME", "PYTHONPATH", "PIP_PREFIX", "PIP_TARGET", "PIP_USER", "PIP_REQUIRE_VIRTUALENV")
_SECRET = re.compile(r"//[^/\s]+@")
_LARGE_DOWNLOAD = re.compile(r"Downloading (.+ \((?:\d{2,}\.\dM|[\d.]+G)iB\))")


class InstallationFailed(Exception):
    """A failed command of the set-up; ``output`` is what it wrote."""

    def __init__(self, what: str, output: str) -> None:
        self.output = output
        super().__init__(f"{what} failed")


@contextmanager
def made(
    folder: Path, names: tuple[str, ...], *, compiles: bool, is_complete: bool = True
) -> Iterator[Callable[..., None]]:
    """Yield a function that makes the environment hold what some requirement files pin, and no more.

    The environment gets its stamp, of all ``names``, after the body. One without a stamp starts empty.
    """
    start_s = time.monotonic()
    uv, settings = find_uv(), pip_settings()
    into = f"--python={folder / 'bin' / 'python'}"
    is_kept = origin(folder).items() <= read_stamp(folder).items()
    doing = "updating (restart servers that run from it):" if is_kept else "installing"
    say(f"{folder.name}: {doing} {', '.join(names)}")
    stamp_file(folder).unlink(missing_ok=True)
    if not is_kept:
        run("uv venv", uv, "venv", "--clear", "--force", f"--python={machine.PYTHON}", str(folder))

    def sync(*names: str, **index: str) -> None:
        files = [str(requirements(name)) for name in names]
        options = ["--compile-bytecode"] * compiles + ["--require-hashes"] * files[0].endswith(".txt")
        command = (uv, "pip", "sync", into, "--only-binary=:all:", *options, *files)
        run("uv pip sync", *command, **{**settings, **index})

    yield sync
    if is_complete:
        run("uv pip check", uv, "pip", "check", into)
    stamp_file(folder).write_text(json.dumps(stamp(folder, *names)))
    count = len(list(folder.glob("lib/python*/site-packages/*.dist-info")))
    say(f"{folder.name}: {count} packages in {time.monotonic() - start_s:.0f} s")


def find_uv() -> str:
    """Return the command of the pinned uv. If it is not there, pip installs it. Raises MissingRequirement."""
    folder = ROOT / ".cache" / "uv"
    wanted = stamp(folder, "uv")
    if read_stamp(folder) != wanted:
        say("installing uv, which makes the environments")
        stamp_file(folder).unlink(missing_ok=True)
        run("python -m venv", machine.PYTHON, "-m", "venv", "--clear", str(folder))
        options = ("--no-input", "--progress-bar=off", "--no-deps", "--only-binary=:all:", "--require-hashes")
        try:
            run("pip install", str(folder / "bin/pip"), "install", *options, "-r", str(requirements("uv")))
        except InstallationFailed as error:
            if "No matching distribution found" not in error.output:
                raise
            remedy = (
                "pip's package indexes don't offer it: check the network, and index-url in `pip config list`"
            )
            raise MissingRequirement(what="uv's wheel for this machine", remedy=remedy) from error
        stamp_file(folder).write_text(json.dumps(wanted))
    return str(folder / "bin" / "uv")


def pip_settings() -> dict[str, str]:
    """Return variables that give uv the settings of pip, other than those that are set already.

    Packages are cached in the checkout if the user's cache folder can't be written.
    """
    listed = run("pip config list", str(ROOT / ".cache/uv/bin/pip"), "config", "list")
    settings = {"UV_INDEX_STRATEGY": "unsafe-best-match", "UV_PYTHON_DOWNLOADS": "never"}
    for section in ("global.", "install.", ":env:."):  # The last one wins.
        for key, _, value in (
            line[len(section) :].partition("=") for line in listed.splitlines() if line.startswith(section)
        ):
            if variable := _SETTINGS.get(key):
                separator = "," if key == "find-links" else " "
                settings[variable] = separator.join(ast.literal_eval(value).split())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "uv"
    with suppress(OSError):
        cache.mkdir(parents=True, exist_ok=True)
    if not os.access(cache, os.W_OK):
        settings["UV_CACHE_DIR"] = str(ROOT / ".cache" / "packages")
    return {name: value for name, value in settings.items() if name not in os.environ}


def requirements(name: str) -> Path:
    """Return the lock of this name, or, if it has a suffix, the file."""
    return ROOT / "requirements" / (name if "." in name else f"{name}.txt")


def origin(folder: Path) -> dict[str, str]:
    """Return the entries of a stamp that allow an environment to be updated in place."""
    return {"folder": str(folder), "python": machine.PYTHON}


def stamp(folder: Path, *names: str) -> dict[str, str]:
    """Return the stamp of a finished environment of these requirement files."""
    digest = hashlib.sha256(b"\n".join(requirements(name).read_bytes() for name in names))
    return {**origin(folder), "names": " ".join(names), "made_from": digest.hexdigest()}


def stamp_file(folder: Path) -> Path:
    return folder / "cog-triton-stamp.json"


def read_stamp(folder: Path) -> dict[str, str]:
    """Return the folder's stamp; empty if it was not finished."""
    try:
        return dict(json.loads(stamp_file(folder).read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def run(what: str, *command: str, **environment: str) -> str:
    """Run a command; show how long it takes and what it downloads. Return its output.

    Raises InstallationFailed, whose output is without the secrets of URLs.
    """
    kept = {name: value for name, value in os.environ.items() if name not in _MISLEADING}
    output = []
    with LiveLine() as live, subprocess.Popen(
        command,
        cwd=ROOT,
        env={**kept, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        close_fds=False,  # it keeps the lock if this process is killed while it writes
    ) as process:
        live.show(what)
        for line in process.stdout or ():
            output.append(line)
            live.show(f"{what}: {_SECRET.sub('//****@', line.strip())}", is_new=False)
            if large := _LARGE_DOWNLOAD.match(line):
                live.say(f"  downloading {large[1]}")
    if process.returncode != 0:
        raise InstallationFailed(what, _SECRET.sub("//****@", "".join(output)))
    return "".join(output)


def say(line: str) -> None:
    print(line, flush=True)
