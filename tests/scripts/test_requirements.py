"""The locks in requirements/ pin everything, by hash, for each Python, and name no package registry."""

import json
import re
from functools import cache
from itertools import chain
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from scripts import setup_environment

ROOT = Path(__file__).parents[2]
REQUIREMENTS = ROOT / "requirements"
LOCKS = sorted(REQUIREMENTS.glob("*.txt"))
PYTHONS = ("3.10", "3.11", "3.12")
TORCH_CPU_PYTHONS = VLLM_PYTHONS = ("3.11", "3.12")
VLLM, VLLM_CPU = ("vllm", "test"), ("torch-cpu", "vllm-cpu", "test")
ENVIRONMENTS = (
    ("serving", "test", "dev"),
    ("engine", "test", "torch-cuda"),
    ("engine", "test", "torch-cpu"),
    ("clients", "test"),
    ("gateways",),
    ("dynamo",),
    ("fleet",),
    VLLM,
    VLLM_CPU,
)
NPM_LOCK = ROOT / "tests" / "clients" / "javascript" / "package-lock.json"
HOST = re.compile(r"https?://|\bpypi\.|\.(?:org|com|io|net|dev|ai)\b|find-links|--index|^-f ", re.MULTILINE)


@cache
def entries(lock: Path) -> list[tuple[Requirement, list[str]]]:
    """Each requirement of a lock file, with its hashes."""
    text = re.sub(r"^#.*\n", "", lock.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    split = [re.split(r"\s+--hash=", line.strip()) for line in text.splitlines()]
    return [(Requirement(requirement), hashes) for requirement, *hashes in split]


def pins(name: str, python: str) -> list[tuple[str, str]]:
    """Return the name and version of every package that a lock brings to this Python on Linux."""
    surroundings = {
        "implementation_name": "cpython",
        "platform_machine": "x86_64",
        "platform_python_implementation": "CPython",
        "python_full_version": f"{python}.5",
        "python_version": python,
        "sys_platform": "linux",
    }
    wanted = [entry for entry, _ in entries(REQUIREMENTS / f"{name}.txt")]
    return [
        (entry.name.lower().replace("_", "-"), str(entry.specifier).removeprefix("=="))
        for entry in wanted
        if entry.marker is None or entry.marker.evaluate(surroundings)
    ]


def test_every_requirement_is_pinned_by_version_and_hash() -> None:
    for requirement, hashes in chain.from_iterable(map(entries, LOCKS)):
        assert re.fullmatch(r"==[\w.+]+", str(requirement.specifier)), requirement
        assert hashes, requirement
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}", digest) for digest in hashes), requirement


@pytest.mark.parametrize("python", PYTHONS)
def test_an_environment_gets_one_version_of_each_package(python: str) -> None:
    for environment in ENVIRONMENTS:
        if environment in (VLLM, VLLM_CPU) and python not in VLLM_PYTHONS:
            continue
        assert all(len(pins(lock, python)) == len(dict(pins(lock, python))) for lock in environment)
        pinned = {pin for lock in environment for pin in pins(lock, python)}
        assert len(pinned) == len(dict(pinned)), environment


@pytest.mark.parametrize("python", PYTHONS)
def test_a_lock_is_what_its_requirements_ask_for(python: str) -> None:
    for wanted in REQUIREMENTS.glob("*.in"):
        lines = [line for line in wanted.read_text().splitlines() if line and not line.startswith(("#", "-"))]
        locked = dict(pins(wanted.stem, python))
        if wanted.stem == "torch-cpu" and python not in TORCH_CPU_PYTHONS:
            assert locked == {}
            continue
        for requirement in map(Requirement, lines):
            if requirement.marker is None or requirement.marker.evaluate({"python_version": python}):
                assert locked[requirement.name.lower().replace("_", "-")] in requirement.specifier


def test_vllm_is_tested_without_a_gpu_with_packages_of_its_lock() -> None:
    for python in VLLM_PYTHONS:
        assert set(pins("vllm-cpu", python)) <= set(pins("vllm", python))


def test_both_builds_of_torch_are_the_same_version() -> None:
    for python in TORCH_CPU_PYTHONS:
        (cpu,) = pins("torch-cpu", python)
        assert cpu[1] == f"{dict(pins('torch-cuda', python))['torch']}+cpu"


def test_no_file_names_a_package_registry() -> None:
    files = [*REQUIREMENTS.iterdir(), *(ROOT / name for name in ("Makefile", "pyproject.toml", ".ci/run"))]
    assert {
        file.name: HOST.findall(file.read_text()) for file in files if HOST.search(file.read_text())
    } == {}


def test_the_index_of_torchs_cpu_build_is_named_in_one_place() -> None:
    host = setup_environment.TORCH_CPU_INDEX.split("/")[2]
    script = (ROOT / "scripts" / "setup_environment.py").read_text()
    assert script.count(host) == 1
    # Its scheme and its name, and no other; --find-links names a folder.
    assert len([each for each in HOST.findall(script) if each != "find-links"]) == 2


def test_npms_lock_knows_every_package_by_its_hash_and_no_registry() -> None:
    _, *packages = json.loads(NPM_LOCK.read_text())["packages"].values()
    assert packages
    assert all(package["integrity"].startswith("sha512-") for package in packages)
    assert all("resolved" not in package for package in packages)
