"""The input tensors of a Triton request: read row by row, a value that is no good is E1103."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from errors.requests import InvalidTensor
from runner.engines.protocol.messages import Tensor

Tensors = Mapping[str, npt.NDArray[Any]]
"""Input tensors by name, batch dimension first."""


class Row:
    """One row of a batch: reads scalars and words from it."""

    def __init__(self, tensors: Tensors, index: int) -> None:
        self._tensors = tensors
        self._index = index

    def scalar(self, *names: str) -> Any | None:
        """The value of the first tensor present among ``names`` (aliases), as a Python scalar."""
        for name in names:
            if name in self._tensors:
                values = self._tensors[name][self._index].reshape(-1)
                if values.size != 1:
                    raise InvalidTensor(name=name, expected="one value per request", value=values.tolist())
                return values[0].item()
        return None

    def integer(self, *names: str, default: int, minimum: int) -> int:
        value = self.scalar(*names)
        if value is None:
            return default
        if value < minimum:
            raise InvalidTensor(name=names[0], expected=f"at least {minimum}", value=value)
        return int(value)

    def number(self, name: str, *, default: float, minimum: float = -math.inf) -> float:
        value = self.scalar(name)
        if value is None:
            return default
        if not math.isfinite(value) or value < minimum:
            floor = "" if minimum == -math.inf else f" of at least {minimum:g}"
            raise InvalidTensor(name=name, expected=f"a finite number{floor}", value=value)
        return float(value)

    def array(self, name: str) -> list[Any]:
        """Its values, as Python numbers; none where there is no such tensor."""
        return self._tensors[name][self._index].reshape(-1).tolist() if name in self._tensors else []

    def text(self, name: str) -> str | None:
        """A text of UTF-8; None where there is none or it is empty."""
        if name not in self._tensors:
            return None
        (value,) = self._tensors[name][self._index].reshape(-1)
        try:
            return value.decode() or None
        except UnicodeDecodeError as exc:
            raise InvalidTensor(name=name, expected="text in UTF-8", value=value) from exc

    def words(self, name: str, vocab_size: int) -> list[list[int]]:
        """Token sequences from a [2, L] tensor: flattened ids, and cumulative end offsets padded with -1."""
        if name not in self._tensors:
            return []
        tensor = self._tensors[name][self._index]
        if tensor.ndim != 2 or tensor.shape[0] != 2:
            raise InvalidTensor(name=name, expected="of shape [2, length]", value=list(tensor.shape))
        ids, offsets = tensor
        ends = [int(end) for end in offsets if end >= 0]
        if ends != sorted(ends) or (ends and ends[-1] > len(ids)):
            raise InvalidTensor(name=name, expected="rising end offsets within its length", value=ends)
        check_ids(name, ids[: ends[-1] if ends else 0], vocab_size)
        starts = [0, *ends][:-1]
        return [ids[start:end].tolist() for start, end in zip(starts, ends, strict=True) if end > start]

    def tensors(self, names: tuple[str, ...]) -> dict[str, Tensor]:
        """Those of the row that are given, as they are."""
        arrays = {
            name: np.ascontiguousarray(self._tensors[name][self._index])
            for name in names
            if name in self._tensors
        }
        return {
            name: Tensor(str(array.dtype), list(array.shape), array.tobytes())
            for name, array in arrays.items()
            if array.size
        }


def batch_size(tensors: Tensors) -> int:
    """Rows of the request; tensors that disagree are E1103."""
    sizes = {name: len(tensor) for name, tensor in tensors.items()}
    if len(set(sizes.values())) != 1:
        raise InvalidTensor(name="batch dimension", expected="the same in all tensors", value=sizes)
    return next(iter(sizes.values()))


def check_ids(name: str, ids: npt.NDArray[Any], vocab_size: int) -> None:
    """Raise for ids that are no tokens."""
    wrong = ids[(ids < 0) | (ids >= vocab_size)]
    if wrong.size:
        raise InvalidTensor(name=name, expected=f"within 0..{vocab_size - 1}", value=int(wrong[0]))
