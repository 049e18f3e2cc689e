"""Make the two environments that everything here runs in: ``.venv`` and ``.venv-engine``.

``.venv`` serves (Cog, Triton, the command line) and tests. ``.venv-engine`` runs the engine: torch and
transformers, whose pins must not hold the server back. The argument ``clients`` makes ``.venv-clients``
instead, with other projects' clients to test with; the argument ``vllm``, on a machine with a GPU,
``.venv-vllm``, which runs the ``vllm`` engine. All hold exactly what ``requirements/*.txt`` pin by hash.
A finished environment has a stamp of what it was made from. With the same stamp nothing is done and no
network is used; with another one, or after an interruption, the environment is made anew. Downloaded packages
stay in ``cog-triton-wheels`` below the user's cache folder, which all checkouts share.

Environment: ``PYTHON`` (which Python to use), ``TORCH`` (``cpu`` or ``cuda``; unset: cuda where there is an
NVIDIA GPU), ``TORCH_CPU_INDEX`` (an index with torch's CPU build, if pip's own indexes don't have it),
``VLLM_PYTHON`` (the Python of an environment with vLLM: the tests' packages are added to it, and no
``.venv-vllm`` is made), ``XDG_CACHE_HOME`` (the user's cache folder).
Exit status: 0 done, 1 an installation failed, 2 this machine lacks something that the message names.
Standard library only, and Python 3.8 can run it (see machine.py).
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from errors.coded_error import CodedError  # noqa: E402
from errors.settings import InvalidSetting, MissingRequirement  # noqa: E402
from scripts import machine  # noqa: E402

REQUIREMENTS = ROOT / "requirements"
LOG = ROOT / ".cache" / "setup.log"
LOCK = ROOT / ".cache" / "setup.lock"
# NOTE: pip's own cache keeps nothing of an index that sends no Cache-Control, as many mirrors do.
_HOME = Path(os.environ.get("HOME") or tempfile.gettempdir())
WHEELS = Path(os.environ.get("XDG_CACHE_HOME") or _HOME / ".cache") / "cog-triton-wheels"

# The one place that names it: torch's CPU build is published here, not on the index that pip uses by default.
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"

_PACKAGE = re.compile(r"(Collecting|Processing) ")
_PROGRESS_EVERY_S = 10.0
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
    python: machine.Python
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
        made_from = fingerprint(pins, str(self.folder))
        return {
            "made_from": made_from,
            "python": self.python.executable,
            "version": self.python.minor_version,
        }

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

    def install(self, *options: str, index: str = "", compiles: bool = True) -> None:
        """Install with pip, without looking for what else is needed: the locks name it all.

        Packages with a pinned hash come from the folder that all checkouts share; what it lacks is downloaded
        into it.
        """
        if "--require-hashes" not in options:
            self._pip("install", *options, index=index)
            return
        cached = ["--no-index", "-f", str(WHEELS), *options]
        if not compiles:
            cached.append("--no-compile")
        try:
            WHEELS.mkdir(parents=True, exist_ok=True)
            (WHEELS / "lock").touch()
        except OSError as error:
            say(f"  packages are not kept for other checkouts: {error}")
            self._pip("install", *([] if compiles else ["--no-compile"]), *options, index=index)
            return
        with alone(WHEELS / "lock", f"Another set-up is using {WHEELS}: waiting for it to end"):
            if any(WHEELS.glob("*.whl")):
                try:
                    self._pip("install", *cached)
                except InstallationFailed:
                    say("  some packages are not in the cache")
                else:
                    return
            self._pip("download", "--no-cache-dir", f"--dest={WHEELS}", *options, index=index)
            self._pip("install", *cached)

    def _pip(self, command: str, *options: str, index: str = "") -> None:
        # A URL may hold a secret, which a command line would show to everyone on this machine.
        environment = {"PIP_INDEX_URL": index} if index else {}
        quiet = ("--no-input", "--progress-bar=off", "--disable-pip-version-check")
        pip = (self.command, "-m", "pip", command, "--no-deps")
        run(f"pip {command}", *pip, *quiet, *options, **environment)


def locked(*names: str) -> list[str]:
    """pip's options for installing what the lock files of these names pin, if every hash is right."""
    files = [option for name in names for option in ("-r", str(REQUIREMENTS / f"{name}.txt"))]
    return ["--only-binary=:all:", "--require-hashes", *files]


def has_torch_hash(minor_version: str) -> bool:
    """Whether torch-cpu.txt knows the hash of torch's CPU wheel for this Python."""
    return f'python_version == "{minor_version}"' in (REQUIREMENTS / "torch-cpu.txt").read_text()


def install_torch_cpu(environment: Environment) -> None:
    """Install torch's CPU build from pip's indexes if they have it, else from TORCH_CPU_INDEX."""
    version = environment.python.minor_version
    options = locked("torch-cpu")
    if not has_torch_hash(version):
        say(f"  torch-cpu.txt has no hash for Python {version}: relying on the one the package index gives")
        options = ["--only-binary=:all:", "-r", str(REQUIREMENTS / "torch-cpu.in")]
    try:
        environment.install(*options)
    except InstallationFailed as error:
        if "No matching distribution found" not in error.output:
            raise
    else:
        return
    say("  torch's CPU build is not on pip's package indexes: asking TORCH_CPU_INDEX")
    try:
        environment.install(*options, index=os.environ.get("TORCH_CPU_INDEX") or TORCH_CPU_INDEX)
    except InstallationFailed as error:
        others = [f"`make setup PYTHON=python{other}`" for other in ("3.11", "3.12") if other != version]
        remedy = (
            f"neither pip's package indexes nor TORCH_CPU_INDEX offer it (see {LOG.relative_to(ROOT)}): "
            f"check the network, set TORCH_CPU_INDEX to an index that has it, or try {' or '.join(others)}"
        )
        raise MissingRequirement(what=f"torch's CPU build for Python {version}", remedy=remedy) from error


def install_project(environment: Environment) -> None:
    """Make the packages of this repository and the `cog-triton` command part of the environment."""
    stamp = environment.folder / "cog-triton-project"
    made_from = fingerprint([ROOT / "pyproject.toml"])
    if not stamp.exists() or stamp.read_text() != made_from:
        environment.install("--no-build-isolation", "--editable", str(ROOT))
        stamp.write_text(made_from)


def set_up() -> list[MissingRequirement]:
    """Make what is not current of the two environments; returns what this machine must provide first."""
    torch = torch_requirements(os.environ.get("TORCH", ""))
    python = chosen_python(os.environ.get("PYTHON", ""), os.environ.get("PATH", os.defpath))
    serving = Environment(ROOT / ".venv", python, ("serving", "test", "dev"))
    engine = Environment(ROOT / ".venv-engine", python, (torch, "engine", "test"))
    if not (serving.is_current() and engine.is_current()):
        system = machine.missing_from_system(
            platform.system(), platform.machine(), machine.glibc_version(), os.environ.get("PATH", os.defpath)
        )
        if system or python.missing():
            return system + python.missing()
        LOG.write_text("")
        say(f"Python {python.version} ({python.executable}); torch: {torch.replace('torch-', '')} build")
    if not serving.is_current():
        with serving.being_made():
            serving.install(*locked(*serving.names))
    install_project(serving)
    if not engine.is_current():
        with engine.being_made():
            if torch == "torch-cpu":
                install_torch_cpu(engine)
                engine.install(*locked("engine", "test"))
            else:
                engine.install(*locked(*engine.names))
            (engine.site_packages / "cog-triton.pth").write_text(f"{ROOT}\n")
    return []


def make_environment(
    folder: str, names: tuple[str, ...], *, compiles: bool = True
) -> list[MissingRequirement]:
    """Make one environment, if it is not current, by the Python of ``.venv``."""
    python = chosen_python(os.environ.get("PYTHON", ""), os.environ.get("PATH", os.defpath))
    environment = Environment(ROOT / folder, python, names)
    if not environment.is_current():
        if python.missing():
            return python.missing()
        with environment.being_made():
            environment.install(*locked(*names), compiles=compiles)
    return []


def set_up_clients() -> list[MissingRequirement]:
    """Make the environment of other projects' clients. Most of it is never imported, so not compiled."""
    return make_environment(".venv-clients", ("clients", "test"), compiles=False)


def set_up_vllm() -> list[MissingRequirement]:
    """Make vLLM's environment, if it is not current; or bring what tests need into ``VLLM_PYTHON``'s."""
    if not machine.has_nvidia_gpu():
        remedy = "run this on a machine with one: what needs none is tested by `make test`"
        return [MissingRequirement(what="an NVIDIA GPU", remedy=remedy)]
    if named := os.environ.get("VLLM_PYTHON", ""):
        if not os.access(named, os.X_OK):
            raise InvalidSetting(
                name="VLLM_PYTHON", expected="the path of an environment's Python", value=named
            )
        uv = str(ROOT / ".venv" / "bin" / "uv")
        tests = str(REQUIREMENTS / "test.txt")
        run("uv pip install", uv, "pip", "install", "--python", named, "--require-hashes", "-r", tests)
        return []
    return make_environment(".venv-vllm", ("vllm", "test"))


SET_UPS = {(): set_up, ("clients",): set_up_clients, ("vllm",): set_up_vllm}
"""By the arguments."""


def torch_requirements(setting: str) -> str:
    """The name of the requirement file that brings torch."""
    if setting not in ("", "cpu", "cuda"):
        raise InvalidSetting(name="TORCH", expected="cpu or cuda", value=setting)
    return f"torch-{setting or ('cuda' if machine.has_nvidia_gpu() else 'cpu')}"


def chosen_python(setting: str, path: str) -> machine.Python:
    """The Python to use: the one that made ``.venv``, unless it is gone or ``setting`` names another.

    So the environments don't change hands whenever ``path`` does, as it does inside an activated one.
    """
    maker = "" if setting else read_stamp(ROOT / ".venv").get("python", "")
    return (machine.describe(maker) if maker else None) or machine.choose_python(setting, path)


def fingerprint(files: Sequence[Path], *facts: str) -> str:
    """A digest that changes when one of the files or facts does."""
    digests = [hashlib.sha256(file.read_bytes()).hexdigest() for file in files]
    return hashlib.sha256(json.dumps([digests, facts]).encode()).hexdigest()


def stamp_file(folder: Path) -> Path:
    return folder / "cog-triton-stamp.json"


def read_stamp(folder: Path) -> dict[str, str]:
    """What the environment in ``folder`` was made from; empty if it was not finished."""
    try:
        stamp = json.loads(stamp_file(folder).read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def run(what: str, *command: str, **environment: str) -> None:
    """Run a command with its output in the log; print its progress. Raises InstallationFailed."""
    surroundings = {name: value for name, value in os.environ.items() if name not in _MISLEADING}
    output = []
    packages, told_s = 0, time.monotonic()
    with LOG.open("a") as log, subprocess.Popen(
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
        for line in process.stdout or ():
            output.append(line)
            log.write(line)
            large = _LARGE_DOWNLOAD.match(line)
            if large:
                say(f"  downloading {large[1]} ({large[2]})")
            packages += bool(_PACKAGE.match(line))
            if time.monotonic() - told_s > _PROGRESS_EVERY_S:
                say(f"  {what}: {packages} packages so far")
                told_s = time.monotonic()
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


def main(*arguments: str) -> int:
    try:
        if arguments not in SET_UPS:
            raise InvalidSetting(name="argument", expected="clients, vllm or none", value=" ".join(arguments))
        with alone(LOCK, "Another set-up is running here: waiting for it to end"):
            missing = SET_UPS[arguments]()
    except CodedError as error:
        print(error, file=sys.stderr)
        return 2
    except InstallationFailed as error:
        tail = "".join(f"  {line}\n" for line in error.output.splitlines()[-20:])
        print(f"Set-up: {error}; the last lines of {LOG.relative_to(ROOT)}:\n{tail}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("Set-up interrupted; the next one starts over.", file=sys.stderr)
        return 130
    for requirement in missing:
        print(requirement, file=sys.stderr)
    return 2 if missing else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
