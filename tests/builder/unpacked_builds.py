"""Engines built from configs and the folder ``model`` of a test's own folder, and unpacked there."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from builder.build import OWN_FOLDER, build
from engine.tar.manifest import Manifest
from engine.tar.unpack import unpack


def example_model(folder: Path) -> Path:
    """Copy the model that the project ships into the folder ``model``."""
    return shutil.copytree(OWN_FOLDER / "examples" / "tiny" / "model", folder / "model")


def write_config(folder: Path, keys: Mapping[str, Any]) -> Path:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({"model_path": "model", **keys}))
    return path


def built(folder: Path, keys: Mapping[str, Any]) -> tuple[Manifest, Path]:
    tar, target = folder / "engine.tar", folder / "engine"
    manifest = build(write_config(folder, keys), tar, report=lambda line: None)
    with tar.open("rb") as stream:
        unpack(stream, target)
    return manifest, target
