"""The input tensors of a Triton request, read row by row. An invalid value is E1103."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from errors.requests import InvalidTensor
from runner.engines.protocol.checks import MAX_WORDS
from runner.engines.protocol.messages import Tensor

Tensors = Mapping[str, npt.NDArray[Any]]
"""Input tensors by name, batch dimension first."""


@dataclass(frozen=True)
class Row:
    """One row of a batch."""

    _tensors: Tensors
    _index: int

    def scalar(self, *names: str, default: Any = None) -> Any:
        """Return the value of the first tensor present among ``names`` (aliases), as a Python scalar."""
        for name in names:
            if name in self._tensors:
                values = self._tensors[name][self._index]
                if values.size != 1:
                    raise InvalidTensor(name=name, expected="one value per request", value=values.tolist())
                return values.item()
        return default

    def integer(self, *names: str, default: int) -> int:
        """Return a scalar of at least 0."""
        value = self.scalar(*names, default=default)
        if value < 0:
            raise InvalidTensor(name=names[0], expected="at least 0", value=value)
        return int(value)

    def array(self, name: str) -> npt.NDArray[Any]:
        """Return the values in one dimension; empty without such a tensor."""
        return self._tensors[name][self._index].reshape(-1) if name in self._tensors else np.empty(0)

    def text(self, name: str) -> str | None:
        """Return a text in UTF-8; None without such a tensor or if it is empty."""
        if name not in self._tensors:
            return None
        (value,) = self._tensors[name][self._index].reshape(-1)
        try:
            return value.decode() or None
        except UnicodeDecodeError as exc:
            raise InvalidTensor(name=name, expected="text in UTF-8", value=value) from exc

    def words(self, name: str) -> list[list[int]]:
        """Read token sequences from a [2, L] tensor: flattened ids, and cumulative ends padded with -1."""
        if name not in self._tensors:
            return []
        tensor = self._tensors[name][self._index]
        if tensor.ndim != 2 or tensor.shape[0] != 2:
            raise InvalidTensor(name=name, expected="of shape [2, length]", value=list(tensor.shape))
        ids, offsets = tensor
        ends = offsets[offsets >= 0]
        starts = np.concatenate(([0], ends))[:-1]
        if (ends < starts).any() or (ends.size and ends[-1] > ids.size):
            expected = "rising end offsets within its length"
            raise InvalidTensor(name=name, expected=expected, value=ends.tolist())
        is_word = ends > starts
        if np.count_nonzero(is_word) > MAX_WORDS:
            raise InvalidTensor(name=name, expected=f"at most {MAX_WORDS} words", value=ends.tolist())
        spans = zip(starts[is_word].tolist(), ends[is_word].tolist(), strict=True)
        return [ids[start:end].tolist() for start, end in spans]

    def tensors(self, names: Iterable[str]) -> dict[str, Tensor]:
        """Return the row of each of these tensors that is given and not empty."""
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
    """Return the number of rows. Raises E1103 if the tensors disagree."""
    sizes = {name: len(tensor) for name, tensor in tensors.items()}
    if len(set(sizes.values())) != 1:
        raise InvalidTensor(name="batch dimension", expected="the same in all tensors", value=sizes)
    return next(iter(sizes.values()))
