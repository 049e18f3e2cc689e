"""Errors between our processes: code, facts and sentence. No receiver reads anything out of the sentence."""

from __future__ import annotations

import os
import weakref
from typing import Any

import msgspec

from errors import BY_CODE
from errors.bounded_repr import bounded_repr
from errors.coded_error import CodedError, one_line

_MAX_INT = 1 << 63
_CONTAINERS = (list, tuple, dict, set, frozenset, bytes, int)


class WireError(msgspec.Struct, frozen=True, omit_defaults=True):
    """A coded error in a message. Facts are numbers, booleans, None or text; other values become text."""

    code: str
    name: str
    sentence: str
    facts: dict[str, Any] = {}

    @classmethod
    def of(cls, error: CodedError) -> WireError:
        facts = {name: _plain(value) for name, value in error.facts.items()}
        return cls(error.code, type(error).__name__, error.sentence, facts)

    def restore(self) -> CodedError:
        """Return the same error; for a code that only a newer peer has, of a class made for it."""
        kind = BY_CODE.get(self.code)
        if kind is None:
            name = self.name if self.name.isidentifier() else "UnknownError"
            kind = type(name, (CodedError,), {"code": self.code, "summary": self.sentence})
        return kind.restore(self.sentence, self.facts)


class ExitReason:
    """A file in memory where a child process leaves the error that ends it. The first error stays.

    The parent makes it and passes ``descriptor`` on; the child opens it by that number.
    """

    def __init__(self, descriptor: int | None = None) -> None:
        if descriptor is None:
            descriptor = os.memfd_create("exit-reason")
            weakref.finalize(self, os.close, descriptor)
        self.descriptor = descriptor

    def write(self, error: CodedError) -> None:
        if not os.fstat(self.descriptor).st_size:
            os.pwrite(self.descriptor, msgspec.json.encode(WireError.of(error)), 0)

    def read(self) -> CodedError | None:
        """Read the error. Return None if the process left none, or was killed while it wrote one."""
        data = os.pread(self.descriptor, os.fstat(self.descriptor).st_size, 0)
        try:
            return msgspec.json.decode(data, type=WireError).restore()
        except msgspec.MsgspecError:
            return None

    def clear(self) -> None:
        """Remove the error before the next child is started."""
        os.ftruncate(self.descriptor, 0)


def _plain(value: object) -> str | int | float | None:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, float):
        return float(value)
    if isinstance(value, int) and abs(value) < _MAX_INT:
        return int(value)
    return one_line(bounded_repr(value) if isinstance(value, _CONTAINERS) else str(value))
