"""Write a GGUF file as transformers would: configuration, tokenizer and safetensors."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from gguf import GGMLQuantizationType, dequantize, quantize
from numpy.typing import NDArray

from builder.gguf.architecture import Weight, read_architecture, read_description
from builder.gguf.header import GgufFile, Tensor, read_header
from builder.gguf.tokenizer import tokenizer_of
from builder.weights.files import need_space
from builder.weights.model_files import Model
from engine.progress import Progress

_STORED = {"float32": ("F32", 4), "float16": ("F16", 2), "bfloat16": ("BF16", 2)}
_SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
}
_CHUNK_NUMBERS = 8 << 20
"""Numbers that are converted at a time: 32 MB as float32, and a few times that while they are unpacked."""


def convert(model: Model, name: str, folder: Path, dtype: str | None, progress: Progress | None) -> Model:
    """Convert the file ``name`` of ``model`` to a model in ``folder``. ``dtype``: None for the file's own.

    Raises GgufUnsupported, ModelUnusable and NotEnoughSpace before it writes weights.
    """
    file = read_header(model.name, model.files[name])
    architecture = read_architecture(file)
    values = {**architecture.values, **({"torch_dtype": dtype} if dtype is not None else {})}
    _write_documents(file, values, folder)
    _write_weights(file, architecture.weights, folder / "model.safetensors", values["torch_dtype"], progress)
    return _written(model, folder)


def describe(model: Model, name: str, folder: Path) -> Model:
    """Write configuration and tokenizer of the file ``name`` of ``model``, of any architecture.

    Raises GgufUnsupported and ModelUnusable.
    """
    file = read_header(model.name, model.files[name])
    _write_documents(file, read_description(file), folder)
    return _written(model, folder)


def _written(model: Model, folder: Path) -> Model:
    return Model(model.name, model.revision, {path.name: path for path in folder.iterdir()})


def _write_documents(file: GgufFile, values: Mapping[str, Any], folder: Path) -> None:
    tokenizer, tokenizer_config = tokenizer_of(file)
    ends = [file.get(f"tokenizer.ggml.{key}_token_id", int) for key in ("eos", "eot", "eom")]
    generation = {key: value for key, value in values.items() if key in ("bos_token_id", "pad_token_id")}
    generation["eos_token_id"] = sorted({end for end in ends if end is not None})
    generation |= _sampling(file)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    documents = {
        "config.json": values,
        "generation_config.json": generation,
        "tokenizer_config.json": tokenizer_config,
    }
    for document, content in documents.items():
        (folder / document).write_text(json.dumps(content, indent=2) + "\n")


def _sampling(file: GgufFile) -> dict[str, float]:
    """Return the sampling parameters that llama.cpp's converter took from generation_config.json."""
    given = {name: file.get(f"general.sampling.{key}", (int, float)) for name, key in _SAMPLING.items()}
    # NOTE: they are 32-bit floats, which have 7 digits.
    return {
        name: round(value, 6) if isinstance(value, float) else value
        for name, value in given.items()
        if value is not None
    }


def _write_weights(
    file: GgufFile, weights: tuple[Weight, ...], path: Path, dtype: str, progress: Progress | None
) -> None:
    """Write row by row, so that a model larger than the memory can be converted."""
    stored, number_bytes = _STORED[dtype]
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for weight in weights:
        begin, end = end, end + int(np.prod(weight.shape)) * number_bytes
        header[weight.name] = {"dtype": stored, "shape": weight.shape, "data_offsets": [begin, end]}
    need_space(path.parent, end, purpose="the converted weights")
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    done_bytes = 0
    assert file.path is not None
    with file.path.open("rb") as source, path.open("wb") as target:
        target.write(len(text).to_bytes(8, "little") + text)
        for weight in weights:
            for chunk in _chunks(source, file.tensors[weight.gguf_name], weight.num_heads):
                data = chunk if dtype == "float32" else quantize(chunk, GGMLQuantizationType[stored])
                done_bytes += target.write(np.ascontiguousarray(data).data)
                if progress is not None:
                    progress(done_bytes, end, "converting")


def _chunks(source: BinaryIO, tensor: Tensor, num_heads: int | None) -> Any:
    """Yield the tensor's rows as float32, some at a time."""
    source.seek(tensor.offset)
    rows = tensor.shape[0] if len(tensor.shape) > 1 else 1
    packed: NDArray[np.uint8] = np.fromfile(source, np.uint8, tensor.size_bytes).reshape(rows, -1)
    if num_heads is not None:
        packed = packed.reshape(num_heads, rows // num_heads // 2, 2, -1).swapaxes(1, 2).reshape(rows, -1)
    step = max(1, _CHUNK_NUMBERS * rows // int(np.prod(tensor.shape)))
    for begin in range(0, rows, step):
        yield dequantize(np.ascontiguousarray(packed[begin : begin + step]), tensor.type)
