"""Read what a model's files say about it, and check that its weights are all there."""

import json
import tarfile
import zipfile
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builder.weights.model_files import Model, missing_shards
from errors.build_config import InvalidBuildValue

_MAX_HEADER_BYTES = 100 << 20
MOST = 1 << 32
"""Largest number of a config.json that counts. Products of larger ones overflow a float."""
LENGTH_KEYS = ("max_position_embeddings", "n_positions", "max_seq_len", "max_sequence_length", "seq_length")
_DTYPE_KEYS = ("dtype", "torch_dtype")
_PICKLES = (".bin", ".pt", ".pth")
_TORCHSCRIPT_RECORD = "constants.pkl"
DTYPES = {"F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16"}
"""Data types that safetensors files name."""


@dataclass(frozen=True)
class ModelConfig:
    """``config.json`` of a model; facts of a multi-modal one may stand under ``text_config``."""

    values: Mapping[str, Any]

    @property
    def max_position_embeddings(self) -> int | None:
        """Number of tokens; None where the architecture has no limit or does not state it."""
        found = self._first(LENGTH_KEYS)
        return found if isinstance(found, int) and 0 < found <= MOST else None

    def max_seq_len(self, asked: int | None, remedy: str = "") -> int | None:
        """Return ``asked``, else the model's limit, else None, in tokens. Raises E1203 above the limit."""
        limit = self.max_position_embeddings
        if limit is not None and asked is not None and asked > limit:
            expected = f"at most {limit}, the model's max_position_embeddings{remedy}"
            raise InvalidBuildValue(key="max_seq_len", expected=expected, value=asked)
        return asked or limit

    @property
    def dtype(self) -> str | None:
        found = self._first(_DTYPE_KEYS)
        return found.removeprefix("torch.") if isinstance(found, str) else None

    @property
    def quantization(self) -> str | None:
        """Method by which the weights are quantized, by transformers' name."""
        described = self.values.get("quantization_config")
        method = described.get("quant_method") if isinstance(described, dict) else None
        return method if isinstance(method, str) else None

    def _first(self, keys: Iterable[str]) -> object:
        inner = self.values.get("text_config")
        places = (self.values, inner) if isinstance(inner, dict) else (self.values,)
        found = (place[key] for place in places for key in keys if place.get(key) is not None)
        return next(found, None)


def read_config(model: Model) -> ModelConfig:
    """Read the model's ``config.json``. Raises ModelUnusable if there is no such JSON object."""
    if "config.json" not in model.files:
        raise model.unusable("it has no config.json")
    return ModelConfig(read_object(model, "config.json"))


def read_object(model: Model, name: str) -> dict[str, Any]:
    """Read the JSON object in the file ``name``. Raises ModelUnusable if it is something else."""
    try:
        content = json.loads(model.files[name].read_bytes())
    except (ValueError, RecursionError) as exc:
        raise model.unusable(f"its {name} is not JSON") from exc
    if not isinstance(content, dict):
        raise model.unusable(f"its {name} is not a JSON object")
    return content


def check_shards(model: Model, weights: Collection[str], names: Collection[str], index: str | None) -> None:
    """Raise ModelUnusable if ``names`` lacks files of the ``weights``.

    The files are those that ``index`` lists. Without an index, the numbers in the names of the weights tell
    how many there are.
    """
    if index is None or index not in model.files:
        if missing := missing_shards(weights, names):
            raise model.unusable(f"it lacks {_some(missing)}; download it again")
        return
    shards = read_object(model, index).get("weight_map")
    named = {str(shard) for shard in shards.values()} if isinstance(shards, dict) else set()
    if missing := sorted(named.difference(names)):
        raise model.unusable(f"{index} names {_some(missing)}, which it lacks; download it again")
    if unnamed := sorted(set(weights) - named):
        raise model.unusable(f"{index} does not name {_some(unnamed)}")


def _some(names: Sequence[str]) -> str:
    further = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + further


def safetensors_dtype(model: Model, names: Iterable[str]) -> str | None:
    """Return the commonest data type in the safetensors files ``names``, and check that they are whole."""
    counts: Counter[str] = Counter()
    for name in names:
        counts.update(_tensor_dtypes(model, name))
    return DTYPES.get(counts.most_common(1)[0][0]) if counts else None


def _tensor_dtypes(model: Model, name: str) -> list[str]:
    """Return the data type of every tensor, from the header: 8 bytes of its length, then JSON."""
    path = model.files[name]
    size_bytes = path.stat().st_size
    with path.open("rb") as file:
        header_bytes = int.from_bytes(file.read(8), "little")
        if size_bytes < 8 or header_bytes > min(size_bytes - 8, _MAX_HEADER_BYTES):
            raise model.unusable(f"{name} is not a whole safetensors file")
        text = file.read(header_bytes)
    try:
        tensors = [tensor for key, tensor in json.loads(text).items() if key != "__metadata__"]
        end = max((int(tensor["data_offsets"][1]) for tensor in tensors), default=0)
        dtypes = [str(tensor["dtype"]) for tensor in tensors]
    except (ArithmeticError, LookupError, ValueError, TypeError, AttributeError, RecursionError) as exc:
        raise model.unusable(f"the header of {name} is not safetensors") from exc
    if 8 + header_bytes + end != size_bytes:
        raise model.unusable(
            f"{name} has {size_bytes} bytes, but its header announces {8 + header_bytes + end}"
        )
    return dtypes


def check_pickled_weights(model: Model) -> None:
    """Raise ModelUnusable for a file that may hold more than tensors by its very format.

    Before 2.6, torch gave TorchScript archives and tars to loaders that run their code, also when only
    weights were asked for (CVE-2025-32434), and TensorRT-LLM pins 2.5. Newer torch refuses both.
    """
    for name, path in model.files.items():
        if name.endswith(_PICKLES) and (kind := _code_format(path)) is not None:
            raise model.unusable(f"{name} is {kind} and may hold code; weights as safetensors are needed")


def _code_format(path: Path) -> str | None:
    if tarfile.is_tarfile(path):
        return "a tar"
    if not zipfile.is_zipfile(path):
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except (zipfile.BadZipFile, NotImplementedError):
        return "a broken archive"
    is_torchscript = any(name.rpartition("/")[2] == _TORCHSCRIPT_RECORD for name in names)
    return "a TorchScript archive" if is_torchscript else None
