"""Locks: those that are committed hold together, and one that does not is refused by name."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from nix.lock.lock_file import Lock, Locked, LockError, check, read_lock

_ROOT = Path(__file__).parents[3]
_LOCKS = _ROOT / "nix" / "locks"
_STACKS = json.loads((_LOCKS / "stacks.json").read_text())

_WHEEL = Locked("thing", "1.0", "thing-1.0-py3-none-any.whl", "0" * 64)
_LOCK = Lock("test", "3.11", ("thing",), (_WHEEL,))


@pytest.mark.parametrize("stack", _STACKS)
def test_a_committed_lock_is_whole(stack: str) -> None:
    lock = read_lock(_LOCKS / f"{stack}.json")
    check(lock)
    assert lock.python == _STACKS[stack]["python"]
    assert lock.text() == (_LOCKS / f"{stack}.json").read_text()


@pytest.mark.parametrize("stack", ["serving", "engine-transformers-cpu"])
def test_images_have_the_versions_that_checkouts_have(stack: str) -> None:
    """Locks made of requirements/ are renewed when those are."""
    pins: dict[str, set[str]] = {}
    for requirement in _STACKS[stack]["requirements"]:
        for name, version in re.findall(
            r"^([\w.-]+)==([^ ;\\]+)", (_ROOT / requirement.removeprefix("-r ")).read_text(), re.MULTILINE
        ):
            pins.setdefault(name.lower().replace("_", "-"), set()).add(version)
    for each in read_lock(_LOCKS / f"{stack}.json").files:
        assert each.version in pins[each.name], f"{each.name}: run `nix run .#lock -- {stack}`"


@pytest.mark.parametrize(
    ("lock", "complaint"),
    [
        (
            replace(_LOCK, files=(replace(_WHEEL, requires=("other>1",)),)),
            "requires other>1, which is not in",
        ),
        (replace(_LOCK, files=(replace(_WHEEL, requires=("thing>1",)),)), "but the lock has 1.0"),
        (replace(_LOCK, requirements=("more",)), "the stack itself requires more"),
        (replace(_LOCK, files=(replace(_WHEEL, sha256="0" * 63),)), "has no SHA-256"),
        (replace(_LOCK, files=(replace(_WHEEL, version="2.0"),)), "is not a wheel of thing 2.0"),
        (
            replace(_LOCK, files=(replace(_WHEEL, file="thing-1.0-cp312-cp312-manylinux_2_17_x86_64.whl"),)),
            "is not for Python 3.11",
        ),
        (
            replace(_LOCK, files=(replace(_WHEEL, file="thing-1.0-cp311-cp311-manylinux_2_39_x86_64.whl"),)),
            "none of the platforms",
        ),
        (replace(_LOCK, files=(_WHEEL, _WHEEL)), "not unique"),
    ],
)
def test_what_would_not_work_is_refused(lock: Lock, complaint: str) -> None:
    with pytest.raises(LockError, match=re.escape(complaint)):
        check(lock)


def test_what_is_left_out_is_no_gap() -> None:
    check(replace(_LOCK, files=(replace(_WHEEL, requires=("other",)),), left_out={"other": "not used"}))
