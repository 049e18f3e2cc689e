"""Resolve one stack and write its lock: ``python -m nix.lock.resolve STACK STACKS_JSON LOCK_JSON VERSION``.

Run by ``nix.lock`` in an environment of the stack's own Python that holds pip and packaging: pip goes by
the Python that runs it when it decides which requirements apply.
"""

import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nix.lock.lock_file import PLATFORMS, Lock, Locked, LockError, applicable, check, read_lock

_PYPI_PATH = re.compile(r"/([0-9a-f]{2})/([0-9a-f]{2})/([0-9a-f]{60})/[^/]+$")
"""The end of a file's path on PyPI and its mirrors: the file's BLAKE2b-256, in three parts, then its name."""


def resolve(stack: str, spec: Mapping[str, Any], version: str) -> Lock:
    """Return what pip would install for the stack. Raises LockError; pip's own complaints go to stderr."""
    requirements = tuple(text.format(version=version) for text in spec["requirements"])
    left_out: dict[str, str] = spec.get("left_out", {})
    pinned = tuple(_pinned(each, spec, version) for each in spec.get("pinned", ()))
    # Not PyTorch's index for the wheels that PyPI lacks: it has copies of PyPI's files, too.
    report = _pip_report((*requirements, *spec.get("urls", ())))
    requires = _requires(report, requirements, left_out)
    sources: dict[str, str] = spec.get("sources", {})
    files = [_locked(each, sources, requires) for each in report["install"]]
    files = [each for each in files if each.name in requires]
    ordered = tuple(sorted([*files, *pinned], key=lambda each: each.name))
    return Lock(stack, spec["python"], requirements, ordered, left_out)


def _pinned(each: dict[str, Any], spec: Mapping[str, Any], version: str) -> Locked:
    locked = Locked(**each)
    if locked.name == spec.get("package") and locked.version != version:
        raise LockError(
            f"{locked.name} is on no package index that can be asked; for {version} "
            "first put its wheel's name and hash, and its requirements, into nix/locks/stacks.json"
        )
    return locked


def _pip_report(requirements: tuple[str, ...]) -> dict[str, Any]:
    """Return pip's installation report: only wheels that the index has for the images' platform."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        python = ".".join(map(str, sys.version_info[:2]))
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--quiet"]
        command += ["--no-input", "--only-binary=:all:", "--target", folder, "--report", str(report)]
        command += [f"--python-version={python}", *(f"--platform={each}" for each in PLATFORMS)]
        for text in requirements:
            command += ["-r", text[3:]] if text.startswith("-r ") else [text]
        if subprocess.run(command, check=False).returncode != 0:
            raise LockError("pip could not resolve the stack; what it says is above")
        document: dict[str, Any] = json.loads(report.read_text())
        return document


def _requires(
    report: dict[str, Any], requirements: tuple[str, ...], left_out: Mapping[str, str]
) -> dict[str, tuple[str, ...]]:
    """Return each needed package's requirements that apply, with the extras that are asked for."""
    metadata = {canonicalize_name(each["metadata"]["name"]): each["metadata"] for each in report["install"]}
    extras: dict[str, frozenset[str]] = {}
    if any(text.startswith("-r ") for text in requirements):
        waiting = [Requirement(name) for name in metadata]
    else:
        waiting = [Requirement(text) for text in requirements]
    result: dict[str, tuple[str, ...]] = {}
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        wanted = extras.get(name, frozenset()) | requirement.extras
        if name in left_out or name not in metadata or (name in result and wanted == extras[name]):
            continue
        extras[name] = wanted
        needed = list(applicable(metadata[name].get("requires_dist") or (), wanted))
        result[name] = tuple(sorted({str(each) for each in needed}))
        waiting += needed
    return result


def _locked(
    each: dict[str, Any], sources: Mapping[str, str], requires: Mapping[str, tuple[str, ...]]
) -> Locked:
    name = canonicalize_name(each["metadata"]["name"])
    download = each["download_info"]
    path = unquote(urlsplit(download["url"]).path)
    digest = _PYPI_PATH.search(path)
    return Locked(
        name=name,
        version=each["metadata"]["version"],
        file=path.rpartition("/")[2],
        sha256=download["archive_info"]["hashes"]["sha256"],
        blake2b="".join(digest.groups()) if digest and name not in sources else None,
        source=sources.get(name),
        requires=requires.get(name, ()),
    )


def main() -> int:
    stack, stacks_json, lock_json, version = sys.argv[1:]
    spec = json.loads(Path(stacks_json).read_text())[stack]
    try:
        lock = resolve(stack, spec, version)
        check(lock)
    except LockError as error:
        print(error, file=sys.stderr)
        return 1
    Path(lock_json).write_text(lock.text())
    check(read_lock(Path(lock_json)))
    print(f"{lock_json}: {len(lock.files)} files for Python {lock.python}")
    for each in spec.get("pinned", ()):
        print(
            f"{each['file']} was not downloaded; its hash is that of nix/locks/stacks.json. "
            "If Nix reports a hash mismatch, see docs/images.md#a-hash-mismatch"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
