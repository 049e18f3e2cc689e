"""Stand-in for ``tensorrt_llm.models.modeling_utils`` (0.16.0): ``QuantConfig`` and what a checkpoint is.

A checkpoint's rank files hold one tensor of as many bytes as the weights of that rank would take.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import struct
from pathlib import Path
from typing import Any

from tensorrt_llm.mapping import Mapping

_BITS = {"W8A16": 8, "W4A16": 4, "W4A16_AWQ": 4, "W4A8_AWQ": 4, "W4A16_GPTQ": 4, "FP8": 8}


@dataclasses.dataclass
class QuantConfig:
    quant_algo: str | None = None
    kv_cache_quant_algo: str | None = None
    group_size: int | None = 128
    smoothquant_val: float = 0.5
    clamp_val: list[float] | None = None
    use_meta_recipe: bool = False
    has_zero_point: bool | None = False
    pre_quant_scale: bool | None = False
    exclude_modules: list[str] | None = None

    def to_dict(self) -> dict[str, Any]:
        return dataclasses.asdict(self)


def tensor_shapes(model_dir: Path) -> dict[str, list[int]]:
    """Name and shape of every tensor in the model's safetensors files."""
    shapes: dict[str, list[int]] = {}
    for path in sorted(model_dir.glob("*.safetensors")):
        with path.open("rb") as file:
            header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        shapes |= {name: tensor["shape"] for name, tensor in header.items() if name != "__metadata__"}
    if not shapes:
        raise FileNotFoundError(f"no weights in {model_dir}")
    return shapes


def rank_bytes(model_dir: Path, dtype: str, quant: QuantConfig, mapping: Mapping) -> int:
    """Return the size of a rank's weights: matrices of layers quantized and split, the rest whole."""
    bits = 32 if dtype == "float32" else 16
    total = 0.0
    for name, shape in tensor_shapes(model_dir).items():
        count = math.prod(shape)
        if (".layers." in name or ".h." in name) and len(shape) == 2:
            quant_algo = quant.quant_algo or ""
            weight_bits = 8 if quant_algo.startswith("W8A8") else _BITS.get(quant_algo, bits)
            total += count * weight_bits / 8 / mapping.tp_size / mapping.pp_size
        else:
            total += count * bits / 8
    return int(total)


def write_weights(path: Path, size_bytes: int) -> None:
    header = {"weights": {"dtype": "U8", "shape": [size_bytes], "data_offsets": [0, size_bytes]}}
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(size_bytes))


class PretrainedConfig:
    """What ``config.json`` of a checkpoint holds."""

    def __init__(self, fields: dict[str, Any], mapping: Mapping, quantization: QuantConfig) -> None:
        self.fields, self.mapping, self.quantization = fields, mapping, quantization

    @property
    def dtype(self) -> str:
        return str(self.fields["dtype"])

    def to_dict(self) -> dict[str, Any]:
        mapping = self.mapping.to_dict()
        del mapping["rank"]
        return {**self.fields, "mapping": mapping, "quantization": self.quantization.to_dict()}


def pretrained_config(
    model_dir: Path, dtype: str, mapping: Mapping, quantization: QuantConfig
) -> PretrainedConfig:
    known = json.loads((model_dir / "config.json").read_text())
    if dtype == "auto":
        dtype = known.get("torch_dtype") or "float16"
        dtype = "float16" if dtype == "float32" else dtype
    fields = {
        "architecture": known["architectures"][0],
        "dtype": dtype,
        "vocab_size": known["vocab_size"],
        "max_position_embeddings": known.get("max_position_embeddings") or known["n_positions"],
    }
    return PretrainedConfig(fields, mapping, quantization)


class PretrainedModel:
    def __init__(self, config: PretrainedConfig, model_dir: Path) -> None:
        self.config, self._model_dir = config, model_dir

    def save_checkpoint(self, output_dir: str | os.PathLike[str], save_config: bool = True) -> None:
        config = self.config
        size_bytes = rank_bytes(self._model_dir, config.dtype, config.quantization, config.mapping)
        write_weights(Path(output_dir) / f"rank{config.mapping.rank}.safetensors", size_bytes)
        if save_config:
            (Path(output_dir) / "config.json").write_text(json.dumps(config.to_dict(), indent=4))

    def release(self) -> None:
        pass
