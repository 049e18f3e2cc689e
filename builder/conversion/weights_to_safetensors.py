"""Run in the engine environment: ``weights_to_safetensors.py OUT_DIR FILE...``.

Converts pickled PyTorch weights to safetensors, file by file, with an index if there are several. torch's
weights-only loader rejects pickles that hold more than tensors and runs no code of theirs. Imports nothing of
this project, which that environment does not have.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file  # type: ignore[import-not-found, unused-ignore]


def load(path: Path) -> dict[str, torch.Tensor]:
    """Load the tensors in ``path`` by name, mapped from the file where its format allows it."""
    try:
        content: Any = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError:  # NOTE: files older than torch 1.6 can't be mapped
        content = torch.load(path, map_location="cpu", weights_only=True)
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict):
        sys.exit(f"{path.name} holds a {type(content).__name__}, not named tensors")
    tensors = {name: tensor for name, tensor in content.items() if isinstance(tensor, torch.Tensor)}
    if not tensors:
        sys.exit(f"{path.name} holds no tensors")
    return tensors


def without_sharing(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return ``tensors`` as safetensors stores them: contiguous, none a view of another's memory."""
    seen: set[int] = set()
    separate = {}
    for name, tensor in tensors.items():
        storage = tensor.untyped_storage()
        is_alone = storage.nbytes() == tensor.nbytes and storage.data_ptr() not in seen
        seen.add(storage.data_ptr())
        separate[name] = tensor.contiguous() if is_alone else tensor.contiguous().clone()
    return separate


def main() -> None:
    out_dir = Path(sys.argv[1])
    paths = [Path(argument) for argument in sys.argv[2:]]
    weight_map: dict[str, str] = {}
    total_bytes = 0
    for number, path in enumerate(paths, 1):
        name = f"model-{number:05}-of-{len(paths):05}.safetensors" if len(paths) > 1 else "model.safetensors"
        tensors = without_sharing(load(path))
        save_file(tensors, out_dir / name, metadata={"format": "pt"})
        weight_map |= dict.fromkeys(tensors, name)
        total_bytes += sum(tensor.nbytes for tensor in tensors.values())
    if len(paths) > 1:
        index = {"metadata": {"total_size": total_bytes}, "weight_map": weight_map}
        (out_dir / "model.safetensors.index.json").write_text(
            json.dumps(index, indent=2, sort_keys=True) + "\n"
        )


if __name__ == "__main__":
    main()
