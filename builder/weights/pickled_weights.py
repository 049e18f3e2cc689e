"""Pickled weights (``.bin``, ``.pt``) in formats that torch does not always hold to tensors.

Before 2.6, torch gave TorchScript archives and tars to loaders that run their code, also when only weights
were asked for (CVE-2025-32434), and TensorRT-LLM pins 2.5. Newer torch refuses both.
"""

from __future__ import annotations

import tarfile
import zipfile
from pathlib import Path

from builder.weights.model_files import Model
from errors.build_config import ModelUnusable

_PICKLES = (".bin", ".pt", ".pth")
_TORCHSCRIPT_RECORD = "constants.pkl"


def check_pickled_weights(model: Model) -> None:
    """Raise ModelUnusable for a file that may hold more than tensors by its very format."""
    for name, path in model.files.items():
        if name.endswith(_PICKLES) and (kind := _kind(path)) is not None:
            problem = f"{name} is {kind} and may hold code; weights as safetensors are needed"
            raise ModelUnusable(model=model.name, problem=problem)


def _kind(path: Path) -> str | None:
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
