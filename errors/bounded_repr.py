"""``repr`` in time and space that do not depend on the value, which a client may have sent.

Constants are those of JSON and YAML, which clients write.
"""

from __future__ import annotations

import reprlib
from itertools import islice

_CONSTANTS: dict[object, str] = {None: "null", True: "true", False: "false"}
_MOST_ITEMS = 64
_MOST_CHARACTERS = 4000
_MOST_OF_TEXT = 300
"""Characters kept of a text: enough to recognize it."""


class _BoundedRepr(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 6
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = self.maxdict = _MOST_ITEMS
        self.maxother = self.maxlong = _MOST_CHARACTERS
        self.maxstring = _MOST_OF_TEXT

    def repr_dict(self, x: dict[object, object], level: int) -> str:
        """Keep the dict's own order: the class above sorts all keys."""
        if level <= 0 and x:
            return "{...}"
        shown = [
            f"{self.repr1(key, level - 1)}: {self.repr1(value, level - 1)}"
            for key, value in islice(x.items(), self.maxdict)
        ]
        return "{" + ", ".join([*shown, "..."] if len(x) > len(shown) else shown) + "}"

    def repr_int(self, x: int, level: int) -> str:
        try:
            return super().repr_int(x, level)
        except ValueError:  # Python writes no number of more than 4,300 digits.
            return f"a number of {x.bit_length()} bits"

    def repr1(self, x: object, level: int) -> str:
        is_constant = x is None or isinstance(x, bool)
        return _CONSTANTS[x] if is_constant else super().repr1(x, level)

    def repr_bytes(self, x: bytes, level: int) -> str:
        return repr(x[: self.maxstring]) + ("..." if len(x) > self.maxstring else "")


bounded_repr = _BoundedRepr().repr
