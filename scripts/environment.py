"""A virtual environment, made of what lock files pin: stamped when it is finished, downloads kept for others.

Standard library only, and Python 3.8 can run it (see machine.py).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from engine.live_line import LiveLine
from scripts.machine import Python

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements"
LOG_NAME = ".cache/setup.log"
LOG = ROOT / LOG_NAME
LOCK = ROOT / ".cache" / "setup.lock"
# NOTE: pip's own cache keeps nothing of an index that sends no Cache-Control, as many mirrors do.
_HOME = Path(os.environ.get("HOME") or tempfile.gettempdir())
WHEELS = Path(os.environ.get("XDG_CACHE_HOME") or _HOME / ".cache") / "cog-triton-wheels"

DOWNLOADS_MB = {"serving": 123, "test": 4, "dev": 117, "torch-cpu": 193, "engine": 61, "model": 93}
"""About, by requirement file; of others no total is told."""
_PIN = re.compile(r"^[\w.-]+(?:\[.*\])?(?:==| @ ).*$", re.MULTILINE)
_DOWNLOAD = re.compile(r"\s*Downloading \S+\.whl \(([\d.]+) (kB|MB|GB)\)")
_MB = {"kB": 0.001, "MB": 1.0, "GB": 1000.0}
_LARGE_DOWNLOAD = re.compile(r"\s*Downloading (\w+-[\d.]+\d).* \((\d{2,}\.\d MB|[\d.]+ GB)\)")
# Settings of the caller's shell that would make a venv's Python or pip work elsewhere than in the venv.
_MISLEADING = ("PYTHONHOME", "PYTHONPATH", "PIP_PREFIX", "PIP_TARGET", "PIP_USER", "PIP_REQUIRE_VIRTUALENV")


class InstallationFailed(Exception):
    """A command of the set-up failed; ``output`` is what it wrote, which is in the log too."""

    def __init__(self, what: str, output: str) -> None:
        self.output = output
        super().__init__(f"{what} failed")


@dataclass(frozen=True)
class Environment:
    """A virtual environment made by ``python`` of what ``requirements/<name>.txt`` of all ``names`` pin."""

    folder: Path
    python: Python
    names: tuple[str, ...]

    @property
    def command(self) -> str:
        return str(self.folder / "bin" / "python")

    @property
    def site_packages(self) -> Path:
        return self.folder / "lib" / f"python{self.python.minor_version}" / "site-packages"

    @property
    def stamp(self) -> dict[str, str]:
        pins = [REQUIREMENTS / f"{name}.txt" for name in self.names]
        python = {"python": self.python.executable, "version": self.python.minor_version}
        return {"made_from": fingerprint(pins, str(self.folder)), **python}

    def is_current(self) -> bool:
        return read_stamp(self.folder) == self.stamp and os.access(self.command, os.X_OK)

    @contextmanager
    def being_made(self) -> Iterator[None]:
        """Start from an empty environment; what the body makes of it counts only if it gets to its end."""
        start_s = time.monotonic()
        say(f"{self.folder.name}: installing {', '.join(self.names)}")
        stamp_file(self.folder).unlink(missing_ok=True)
        run("python -m venv", self.python.executable, "-m", "venv", "--clear", str(self.folder))
        yield
        run("pip check", self.command, "-m", "pip", "check")
        stamp_file(self.folder).write_text(json.dumps(self.stamp))
        count = len(list(self.site_packages.glob("*.dist-info")))
        say(f"{self.folder.name}: {count} packages in {time.monotonic() - start_s:.0f} s")

    def install(
        self, *options: str, index: str = "", compiles: bool = True, folder: Path | None = None
    ) -> None:
        """Install with pip, without looking for what else is needed: the locks name it all.

        ``folder``: where to, else into this environment.
        Packages with a pinned hash come from the folder that all checkouts share; what it lacks is downloaded
        into it.
        """
        target = [f"--target={folder}", "--upgrade"] if folder is not None else []
        install = ("install", *([] if compiles else ["--no-compile"]), *target)
        cached = (*install, "--no-index", "-f", str(WHEELS), *options)
        if "--require-hashes" not in options or not _is_writable(WHEELS):
            self._pip(*install, *options, index=index)
            return
        with alone(WHEELS / "lock", f"Another set-up is using {WHEELS}: waiting for it to end"):
            if any(WHEELS.glob("*.whl")):
                try:
                    self._pip(*cached)
                except InstallationFailed:
                    say("  downloading the packages that are not in the cache")
                else:
                    return
            self._pip("download", "--no-cache-dir", f"--dest={WHEELS}", *options, index=index)
            self._pip(*cached)

    def _pip(self, command: str, *options: str, index: str = "") -> None:
        # A URL may hold a secret, which a command line would show to everyone on this machine.
        environment = {"PIP_INDEX_URL": index} if index else {}
        quiet = ("--no-input", "--progress-bar=off", "--disable-pip-version-check")
        pip = (self.command, "-m", "pip", command, "--no-deps")
        progress = PipProgress(command, options, self.site_packages)
        run(f"pip {command}", *pip, *quiet, *options, progress=progress, **environment)


class PipProgress:
    """Progress of pip, by its output and what is installed: ``43 of 84 packages, 210 of 244 MB``."""

    def __init__(self, command: str, options: Sequence[str], site_packages: Path) -> None:
        files = [Path(file) for option, file in zip(options, options[1:]) if option == "-r"]
        self._what = f"pip {command}"
        self._folder = site_packages
        self._pins = {pin for file in files for pin in _PIN.findall(file.read_text())}
        self._ignored: set[str] = set()
        self._begun: set[str] = set()
        known = [DOWNLOADS_MB.get(file.stem) for file in files]
        self._total_mb = None if None in known else sum(each or 0 for each in known)
        self._done_mb, self._before = 0.0, -1

    def read(self, line: str) -> None:
        if line.startswith("Ignoring "):  # Its markers say that it is for another Python or system.
            self._ignored.add(line)
        if line.startswith(("Collecting ", "Processing ")):
            self._begun.add(line.split()[1])
        if found := _DOWNLOAD.match(line):
            self._done_mb += float(found[1]) * _MB[found[2]]
        if line.startswith("Installing collected packages"):
            self._before = self._count()

    def __str__(self) -> str:
        total, parts = len(self._pins) - len(self._ignored), []
        done = len(self._begun) if self._before < 0 else self._count() - self._before
        if total > 1 and self._begun:
            parts.append(f"{min(done, total)} of {total} packages{' installed' if self._before >= 0 else ''}")
        if self._done_mb and self._before < 0:
            of_mb = f" of {max(self._total_mb, self._done_mb):.0f}" if self._total_mb else ""
            parts.append(f"{self._done_mb:.0f}{of_mb} MB")
        return f"{self._what}: {', '.join(parts)}" if parts else self._what

    def _count(self) -> int:
        return sum(1 for _ in self._folder.glob("*.dist-info"))


def _is_writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "lock").touch()
    except OSError as error:
        say(f"  packages are not kept for other checkouts: {error}")
        return False
    return True


def locked(*names: str) -> list[str]:
    """pip's options for installing what the lock files of these names pin, if every hash is right."""
    files = [option for name in names for option in ("-r", str(REQUIREMENTS / f"{name}.txt"))]
    return ["--only-binary=:all:", "--require-hashes", *files]


def fingerprint(files: Sequence[Path], *facts: str) -> str:
    """A digest that changes when one of the files or facts does."""
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    return hashlib.sha256(json.dumps([digests, facts]).encode()).hexdigest()


def stamp_file(folder: Path) -> Path:
    return folder / "cog-triton-stamp.json"


def read_stamp(folder: Path) -> dict[str, str]:
    """What the environment in ``folder`` was made from; empty if it was not finished."""
    try:
        return dict(json.loads(stamp_file(folder).read_text()))
    except (OSError, ValueError, TypeError):
        return {}


def run(what: str, *command: str, progress: PipProgress | None = None, **environment: str) -> None:
    """Run a command with its output in the log; show its progress. Raises InstallationFailed."""
    surroundings = {name: value for name, value in os.environ.items() if name not in _MISLEADING}
    output = []
    with LOG.open("a") as log, LiveLine() as live, subprocess.Popen(
        command,
        cwd=ROOT,
        env={**surroundings, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        close_fds=False,  # it keeps the locks if this process is killed while it writes
    ) as process:
        live.show(what if progress is None else progress.__str__)
        for line in process.stdout or ():
            output.append(line)
            log.write(line)
            if large := _LARGE_DOWNLOAD.match(line):
                live.say(f"  downloading {large[1]} ({large[2]})")
            if progress is not None:
                progress.read(line)
    if process.returncode != 0:
        raise InstallationFailed(what, "".join(output))


@contextmanager
def alone(lock_file: Path, waiting: str) -> Iterator[None]:
    """Hold a lock; say ``waiting`` if another process holds it."""
    lock_file.parent.mkdir(exist_ok=True)
    with lock_file.open("w") as lock:
        os.set_inheritable(lock.fileno(), True)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(waiting)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def say(line: str) -> None:
    print(line, flush=True)
