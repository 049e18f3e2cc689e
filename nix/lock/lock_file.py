"""A lock: the wheels of a Python environment by name, version, file and hash, without hosts; Nix reads it."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from packaging.requirements import Requirement
from packaging.tags import compatible_tags, cpython_tags
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version

_DIGEST = re.compile(r"[0-9a-f]{64}")

NEWEST_GLIBC = 35
"""Minor version of glibc 2: nvidia-pytriton's wheel needs it, so older systems are out anyway."""

PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in range(NEWEST_GLIBC, 4, -1)),
    "manylinux2014_x86_64",
    "manylinux2010_x86_64",
    "manylinux1_x86_64",
    "linux_x86_64",
)
"""The platform tags of wheels that the images can run, best first."""


class LockError(Exception):
    """A lock that would not make a working environment; the text says where and what to do."""


@dataclass(frozen=True)
class Locked:
    """One file: a wheel, or (by ``source``) an archive of libraries that is on no package index.

    ``requires`` are its requirements that hold on the lock's Python. ``source`` names the place in
    ``nix/wheel.nix`` that has the file; without one it is PyPI. ``blake2b`` (BLAKE2b-256) is the file's
    path on PyPI.
    """

    name: str
    version: str
    file: str
    sha256: str
    blake2b: str | None = None
    source: str | None = None
    requires: tuple[str, ...] = ()

    @property
    def is_wheel(self) -> bool:
        return self.file.endswith(".whl")


@dataclass(frozen=True)
class Lock:
    """Everything of one environment. ``left_out`` are requirements that nothing here uses, and why."""

    stack: str
    python: str
    requirements: tuple[str, ...]
    files: tuple[Locked, ...]
    left_out: Mapping[str, str] = field(default_factory=dict)

    def text(self) -> str:
        """Return JSON with a line per file, so that a renewed lock reads well as a difference."""
        head = {
            "stack": self.stack,
            "python": self.python,
            "requirements": self.requirements,
            "left_out": self.left_out,
        }
        lines = [f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in head.items()]
        given = ({key: value for key, value in asdict(each).items() if value} for each in self.files)
        files = ",\n".join(f"    {json.dumps(each)}" for each in given)
        return "{\n" + ",\n".join([*lines, f'  "files": [\n{files}\n  ]']) + "\n}\n"


def read_lock(path: Path) -> Lock:
    document = json.loads(path.read_text())
    files = (Locked(**{**each, "requires": tuple(each.get("requires", ()))}) for each in document["files"])
    return Lock(**{**document, "requirements": tuple(document["requirements"]), "files": tuple(files)})


def check(lock: Lock) -> None:
    """Raise LockError unless every file is well named and every requirement of every file is met."""
    names = [each.name for each in lock.files]
    if names != sorted(set(names)):
        raise LockError(f"{lock.stack}: names are not sorted or not unique")
    by_name = {each.name: each for each in lock.files}
    for each in lock.files:
        _check_file(lock, each)
        for text in each.requires:
            _check_requirement(lock, each.name, Requirement(text), by_name)
    for text in lock.requirements:
        if not text.startswith("-r "):
            _check_requirement(lock, "the stack itself", Requirement(text), by_name)


def _check_file(lock: Lock, each: Locked) -> None:
    if not _DIGEST.fullmatch(each.sha256):
        raise LockError(f"{lock.stack}: {each.file} has no SHA-256 but {each.sha256!r}")
    if each.source is None and not _DIGEST.fullmatch(each.blake2b or ""):
        raise LockError(
            f"{lock.stack}: {each.file} has no BLAKE2b-256 but {each.blake2b!r}; "
            "renew the lock from an index whose files have PyPI's paths"
        )
    if not each.is_wheel:
        return
    name, version, _, tags = parse_wheel_filename(each.file)
    if (name, version) != (each.name, Version(each.version)):
        raise LockError(f"{lock.stack}: {each.file} is not a wheel of {each.name} {each.version}")
    python = tuple(map(int, lock.python.split(".")))
    supported = {*cpython_tags(python, platforms=PLATFORMS), *compatible_tags(python, platforms=PLATFORMS)}
    if tags.isdisjoint(supported):
        raise LockError(
            f"{lock.stack}: {each.file} is not for Python {lock.python} on a platform that the images can run"
        )


def _check_requirement(
    lock: Lock, whose: str, requirement: Requirement, by_name: Mapping[str, Locked]
) -> None:
    name = canonicalize_name(requirement.name)
    if name in lock.left_out:
        return
    if name not in by_name:
        raise LockError(f"{lock.stack}: {whose} requires {requirement}, which is not in the lock")
    if not requirement.specifier.contains(by_name[name].version, prereleases=True):
        raise LockError(
            f"{lock.stack}: {whose} requires {requirement}, but the lock has {by_name[name].version}"
        )


def applicable(requires: Sequence[str], extras: frozenset[str]) -> Iterator[Requirement]:
    """Yield a wheel's requirements that hold on the Python that runs this, with these extras of it."""
    for text in requires:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras)):
            requirement.marker = None
            yield requirement
