"""The header of a GGUF file: its metadata, and where each tensor is.

    magic "GGUF"   version   number of tensors   number of values
    values         key, type, value; an array has a type and a length first
    tensors        name, dimensions (innermost first), type, offset
    padding, then the data of the tensors

The gguf library has a reader, but it believes every count: a file of 100 bytes keeps it busy for ever. Here
each count is checked against the bytes that are left, before anything is allocated for it.
"""

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from errors.build_config import GgufUnsupported, ModelUnusable

_MAX_HEADER_BYTES = 64 << 20
"""Limit of the header. The largest published vocabularies, of 262,144 tokens, take 16 MB."""
_MAX_DIMENSIONS = 4
_NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_LEAST_VALUE_BYTES, _LEAST_TENSOR_BYTES, _LEAST_STRING_BYTES = 13, 32, 8


@dataclass(frozen=True)
class Tensor:
    """Tensor of a file. ``shape``: outermost dimension first, as in torch; ``offset``: from the start."""

    shape: tuple[int, ...]
    type: GGMLQuantizationType
    offset: int
    size_bytes: int


@dataclass(frozen=True)
class GgufFile:
    """A file whose header is sound and whose tensors all lie in it; ``name`` is its model's, for errors."""

    name: str
    path: Path | None
    """Path of the file; None: its header alone is here."""
    metadata: Mapping[str, Any]
    tensors: Mapping[str, Tensor]

    @property
    def architecture(self) -> str:
        return str(self.metadata.get("general.architecture"))

    def get(self, key: str, expected: type[Any] | tuple[type[Any], ...]) -> Any:
        """Return the value of ``key``, or None. Raises ModelUnusable if its type is not ``expected``."""
        value = self.metadata.get(key)
        if value is not None and not isinstance(value, expected):
            raise self.unusable(f"its {key} has another type than GGUF's")
        return value

    def unusable(self, problem: str) -> ModelUnusable:
        return ModelUnusable(model=self.name, problem=problem)

    def unsupported(self, found: str, remedy: str = "use the model's safetensors") -> GgufUnsupported:
        return GgufUnsupported(model=self.name, found=found, remedy=remedy)


def read_header(name: str, path: Path) -> GgufFile:
    """Read the header of the file at ``path``, the model ``name``. Raises ModelUnusable, GgufUnsupported."""
    with path.open("rb") as file:
        return _Reader(name, path.name, file, path.stat().st_size).read(path)


def read_header_of(name: str, file_name: str, file: BinaryIO, size_bytes: int) -> GgufFile:
    """Read the header of ``file``, and no more of it. Raises the errors of ``read_header``."""
    return _Reader(name, file_name, file, size_bytes).read(None)


class _Reader:
    def __init__(self, name: str, file_name: str, file: BinaryIO, size_bytes: int) -> None:
        self._name = name
        self._file_name = file_name
        self._file = file
        self._size_bytes = size_bytes
        self._left_bytes = self._limit_bytes = min(size_bytes, _MAX_HEADER_BYTES)

    def read(self, path: Path | None) -> GgufFile:
        if self._size_bytes < 24 or self._take(4) != b"GGUF":
            raise self._unusable("is not a GGUF file")
        version, num_tensors, num_values = self._unpack("<IQQ")
        if version not in (2, 3):
            big_endian = int.from_bytes(version.to_bytes(4, "big"), "little") in (2, 3)
            found = "big-endian numbers" if big_endian else f"version {version}"
            raise self._unsupported(found, "convert the model again with the converter of today's llama.cpp")
        self._need(num_values * _LEAST_VALUE_BYTES + num_tensors * _LEAST_TENSOR_BYTES)
        metadata = dict(self._entry() for _ in range(num_values))
        if (count := metadata.get("split.count")) not in (None, 0, 1):
            remedy = "join them with llama-gguf-split --merge"
            raise self._unsupported(f"only a part of the model, which is split into {count} files", remedy)
        infos = [self._tensor_info() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment <= 1 << 20:
            raise self._unusable("has an invalid general.alignment")
        begin = -(-(self._limit_bytes - self._left_bytes) // alignment) * alignment
        return GgufFile(self._name, path, metadata, self._tensors(infos, begin))

    def _tensors(self, infos: list[tuple[str, tuple[int, ...], int, int]], begin: int) -> dict[str, Tensor]:
        tensors = {name: self._tensor(name, shape, kind, begin + at) for name, shape, kind, at in infos}
        if len(tensors) < len(infos):
            raise self._unusable("has two tensors of one name")
        end = max((tensor.offset + tensor.size_bytes for tensor in tensors.values()), default=begin)
        if end > self._size_bytes:
            raise self._unusable(f"has {self._size_bytes} bytes, but its header announces {end}")
        if begin + sum(tensor.size_bytes for tensor in tensors.values()) > self._size_bytes:
            raise self._unusable("has tensors that overlap")
        return tensors

    def _tensor(self, name: str, shape: tuple[int, ...], kind: int, offset: int) -> Tensor:
        try:
            quantization = GGMLQuantizationType(kind)
        except ValueError:
            raise self._unsupported(f"tensors of type {kind}", "choose another quantization") from None
        block, block_bytes = GGML_QUANT_SIZES[quantization]
        if not shape or 0 in shape or shape[-1] % block:
            raise self._unusable(f"has a tensor {name[:100]} of an impossible shape {shape}")
        return Tensor(shape, quantization, offset, math.prod(shape) // block * block_bytes)

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        (num_dimensions,) = self._unpack("<I")
        if num_dimensions > _MAX_DIMENSIONS:
            raise self._unusable(f"has a tensor of {num_dimensions} dimensions")
        shape = self._unpack(f"<{num_dimensions}Q")[::-1]
        kind, offset = self._unpack("<IQ")
        return name, shape, kind, offset

    def _entry(self) -> tuple[str, Any]:
        key = self._string()
        (kind,) = self._unpack("<I")
        return key, self._array() if kind == _ARRAY else self._values(kind, 1)[0]

    def _array(self) -> tuple[Any, ...]:
        kind, count = self._unpack("<IQ")
        return self._values(kind, count)

    def _values(self, kind: int, count: int) -> tuple[Any, ...]:
        if kind == _STRING:
            self._need(count * _LEAST_STRING_BYTES)
            return tuple(self._string() for _ in range(count))
        if kind not in _NUMBERS:
            raise self._unusable(f"has a value of the unknown type {kind}")
        self._need(count * struct.calcsize(_NUMBERS[kind]))
        return self._unpack(f"<{count}{_NUMBERS[kind]}")

    def _string(self) -> str:
        (length,) = self._unpack("<Q")
        try:
            return self._take(length).decode()
        except UnicodeDecodeError:
            raise self._unusable("has text that is not UTF-8") from None

    def _unpack(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(form, self._take(struct.calcsize(form)))

    def _take(self, count_bytes: int) -> bytes:
        self._need(count_bytes)
        self._left_bytes -= count_bytes
        taken = self._file.read(count_bytes)
        if len(taken) < count_bytes:
            raise self._unusable("ends before its header does")
        return taken

    def _need(self, count_bytes: int) -> None:
        if count_bytes > self._left_bytes:
            is_cut = self._size_bytes <= _MAX_HEADER_BYTES
            limit = f"a header above {_MAX_HEADER_BYTES >> 20} MiB"
            raise self._unusable("ends before its header does" if is_cut else f"has {limit}")

    def _unusable(self, problem: str) -> ModelUnusable:
        return ModelUnusable(model=self._name, problem=f"{self._file_name} {problem}")

    def _unsupported(self, found: str, remedy: str) -> GgufUnsupported:
        return GgufUnsupported(model=self._name, found=found, remedy=remedy)
