"""Errors between processes: what one raised, another raises with the same class, facts and sentence."""

import os
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from errors.coded_error import CodedError
from errors.engines import EngineCrashed
from errors.settings import InvalidSetting
from errors.wire import ExitReason, WireError
from tests.errors.test_errors import sent


@given(
    st.text(st.characters()),
    st.integers() | st.floats(allow_nan=False) | st.binary() | st.lists(st.integers()),
)
def test_any_fact_can_be_sent(name: str, value: object) -> None:
    error = InvalidSetting(name=name, expected="a value", value=value)
    arrived = sent(error)
    assert str(arrived) == str(error)
    assert arrived.facts["expected"] == "a value"


def test_numbers_arrive_as_numbers_and_all_else_as_text() -> None:
    facts = {"count": 3, "share": 0.5, "is_set": True, "none": None, "path": Path("/a"), "many": [1, 2]}
    assert sent(CodedErrorWithFacts(**facts)).facts == {**facts, "path": "/a", "many": "[1, 2]"}


def test_an_error_that_only_the_peer_knows_keeps_its_code_name_and_sentence() -> None:
    arrived = WireError("E1999", "NewError", "A newer version says this.", {"unknown": 1}).restore()
    assert str(arrived) == "E1999 NewError: A newer version says this."
    assert (arrived.code, arrived.facts) == ("E1999", {"unknown": 1})
    assert str(WireError("E1999", "not a name\0", "Says this.").restore()) == "E1999 UnknownError: Says this."


def test_a_known_error_with_facts_of_a_newer_peer_keeps_them() -> None:
    arrived = WireError("E2107", "EngineCrashed", "It ended.", {"new": 1}).restore()
    assert isinstance(arrived, EngineCrashed)
    assert (arrived.sentence, arrived.facts) == ("It ended.", {"new": 1})


def test_the_first_exit_reason_of_a_child_stays_until_the_next_child() -> None:
    reason = ExitReason()
    assert reason.read() is None
    child = ExitReason(os.dup(reason.descriptor))
    child.write(EngineCrashed(engine_kind="paced", reason="first"))
    child.write(EngineCrashed(engine_kind="paced", reason="second"))
    error = reason.read()
    assert error.facts == {"engine_kind": "paced", "reason": "first"}
    reason.clear()
    assert reason.read() is None


def test_half_an_exit_reason_is_none() -> None:
    reason = ExitReason()
    os.pwrite(reason.descriptor, b'{"code": "E2107", "na', 0)
    assert reason.read() is None


class CodedErrorWithFacts(CodedError):
    code = "E1998"
    summary = "An error of a test"
