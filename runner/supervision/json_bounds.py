"""Bounds of a JSON document, checked on its bytes while they arrive, before it is parsed.

A parser makes up to thirty bytes of objects from one byte of JSON, and holds Python's lock meanwhile.
"""

import re
from dataclasses import dataclass, field
from itertools import accumulate

from errors.api import InvalidBody
from errors.triton_front import InvalidInference

MAX_DEPTH = 256
"""Limit of levels: Python's own encoder and validators fail at about 1,000."""
_CONTAINER_VALUES = 3
"""Count of an object or a list besides its keys and values: it takes more memory than they do."""
_KEY_VALUES = 2
"""Count of a key besides itself: objects take longer to read than lists."""
_DIGITS = b"0123456789"
_MAX_DIGITS = 100
"""Limit of digits: the time for an integer grows with their square."""
_LONG_NUMBER = re.compile(rb"[0-9]{%d}" % (_MAX_DIGITS + 1))
_STRUCTURE = b'",:[]{}'
_OTHERS = bytes(set(range(256)) - {*_STRUCTURE, *_DIGITS})
_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""Steps as signed bytes: one level down, one level up."""


@dataclass(eq=False)
class JSONBounds:
    """Bounds of one document, of which ``feed`` gets all parts."""

    max_values: int
    remedy: str
    error: type[InvalidBody | InvalidInference]
    max_depth: int = MAX_DEPTH
    string_values: int = 0
    """Further count of a string, which takes more memory than a number."""
    num_values: int = field(default=1, init=False)
    """Keys and values so far, approximately."""
    _is_in_string: bool = field(default=False, init=False)
    _is_escaping: bool = field(default=False, init=False)
    """True if the last part ended within an escape sequence."""
    _depth: int = field(default=0, init=False)
    _digits: bytes = field(default=b"", init=False)
    """Digits with which the last part ended, outside of strings."""

    def feed(self, part: bytes) -> None:
        """Raise ``error`` once there are too many keys and values, levels, or digits in one number."""
        outside = self._digits + self._outside_strings(part)
        if _LONG_NUMBER.search(outside):
            raise self.error(reason=f"it has a number of more than {_MAX_DIGITS} digits")
        structure = outside.rstrip(_DIGITS)
        self._digits = outside[len(structure) :]
        structure = structure.translate(None, _DIGITS)
        brackets = structure.translate(_STEPS, b",:")
        num_ends = brackets.count(b"\xff")
        self.num_values += len(structure) - num_ends + _CONTAINER_VALUES * num_ends
        self.num_values += _KEY_VALUES * structure.count(b":")
        self._check_values()
        depths = [*accumulate(memoryview(brackets).cast("b"), initial=self._depth)]
        self._depth = depths[-1]
        if max(depths) > self.max_depth:
            raise self.error(reason=f"it is nested more than {self.max_depth} levels deep")

    def _check_values(self) -> None:
        if self.num_values > self.max_values:
            reason = f"it has more than {self.max_values} keys and values; {self.remedy}"
            raise self.error(reason=reason)

    def _outside_strings(self, part: bytes) -> bytes:
        """Return the brackets, commas, colons and digits that are not part of a string."""
        if self._is_escaping:
            part = b"\\" + part
        num_backslashes = len(part) - len(part.rstrip(b"\\"))
        self._is_escaping = num_backslashes % 2 == 1
        if self._is_escaping:
            part = part[:-1]
        part = part.replace(b"\\\\", b"").replace(b'\\"', b"").translate(None, _OTHERS)
        self.num_values += self.string_values * part.count(b'"') // 2
        self._check_values()
        pieces = part.split(b'"')
        outside = b"".join(pieces[self._is_in_string :: 2])
        self._is_in_string ^= len(pieces) % 2 == 0
        return outside
