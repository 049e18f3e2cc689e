"""Locks: those that are committed hold together, and one that does not is refused by name."""

import json
import re
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from nix.lock.lock_file import Lock, Locked, LockError, applicable, check, read_lock

_ROOT = Path(__file__).parents[3]
_LOCKS = _ROOT / "nix" / "locks"
_STACKS = json.loads((_LOCKS / "stacks.json").read_text())

_WHEEL = Locked("thing", "1.0", "thing-1.0-py3-none-any.whl", "0" * 64, "1" * 64)
_LOCK = Lock("test", "3.11", ("thing",), (_WHEEL,))


@pytest.mark.parametrize("stack", [name for name in _STACKS if (_LOCKS / f"{name}.json").exists()])
def test_a_committed_lock_is_whole(stack: str) -> None:
    lock = read_lock(_LOCKS / f"{stack}.json")
    check(lock)
    assert lock.python == _STACKS[stack]["python"]
    assert lock.text() == (_LOCKS / f"{stack}.json").read_text()


@pytest.mark.parametrize("stack", ["serving", "engine-transformers-cpu"])
def test_images_have_what_checkouts_have(stack: str) -> None:
    """Locks made of requirements/ are renewed when those are: each package, in the same version."""
    lock = read_lock(_LOCKS / f"{stack}.json")
    environment = {"python_version": lock.python, "python_full_version": f"{lock.python}.0"}
    pinned = {
        canonicalize_name(requirement.name): str(requirement.specifier).removeprefix("==")
        for file in lock.requirements
        for requirement in _requirements(_ROOT / file.removeprefix("-r "))
        if requirement.marker is None or requirement.marker.evaluate(environment)
    }
    locked = {each.name: each.version for each in lock.files}
    assert locked == pinned, f"run `nix run .#lock -- {stack.removeprefix('engine-')}`"


def _requirements(path: Path) -> list[Requirement]:
    lines = re.findall(r"^[\w.-]+==[^\\\n]+", path.read_text(), re.MULTILINE)
    return [Requirement(line.strip()) for line in lines]


def test_files_that_are_not_on_pypi_suit_their_stack() -> None:
    for stack, spec in _STACKS.items():
        files = [Locked(**each) for each in spec.get("pinned", ())]
        for url in spec.get("urls", ()):
            file = unquote(url).rpartition("/")[2]
            name, version, *_ = file.split("-")
            files.append(Locked(name, version, file, "0" * 64, source=spec["sources"][name]))
        named = tuple(sorted(files, key=lambda each: each.name))
        check(Lock(stack, spec["python"], (), named))


CHANGES: list[tuple[dict[str, object], str]] = [
    ({"requires": ("other>1",)}, "requires other>1, which is not in"),
    ({"requires": ("thing>1",)}, "but the lock has 1.0"),
    ({"sha256": "0" * 63}, "has no SHA-256"),
    ({"blake2b": None}, "has no BLAKE2b-256"),
    ({"version": "2.0"}, "is not a wheel of thing 2.0"),
    ({"file": "thing-1.0-cp312-cp312-manylinux_2_17_x86_64.whl"}, "is not for Python 3.11"),
    ({"file": "thing-1.0-cp311-cp311-manylinux_2_39_x86_64.whl"}, "a platform that the images can run"),
]
WRONG = [(replace(_LOCK, files=(replace(_WHEEL, **change),)), told) for change, told in CHANGES]
WRONG += [
    (replace(_LOCK, requirements=("more",)), "the stack itself requires more"),
    (replace(_LOCK, files=(_WHEEL, _WHEEL)), "not unique"),
]


def test_what_would_not_work_is_refused() -> None:
    for lock, complaint in WRONG:
        with pytest.raises(LockError, match=re.escape(complaint)):
            check(lock)


def test_what_is_left_out_is_no_gap() -> None:
    check(replace(_LOCK, files=(replace(_WHEEL, requires=("other",)),), left_out={"other": "not used"}))


def test_requirements_hold_by_their_markers() -> None:
    requires = ["a", 'b; python_version > "3"', 'c; extra == "x"', 'd; python_version < "3"']
    for extras, expected in ((frozenset[str](), "ab"), (frozenset({"x"}), "abc")):
        assert "".join(each.name for each in applicable(requires, extras)) == expected
