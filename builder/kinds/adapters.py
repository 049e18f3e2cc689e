"""LoRA adapters that an engine carries: a folder each, by name."""

import json
from collections.abc import Callable
from typing import Any

from builder.config.config import BuildConfig, LoraAdapter
from builder.steps import Step, Work
from builder.weights.checkpoint import read_object
from builder.weights.files import place
from builder.weights.weights import obtain_files
from engine.adapters import CONFIG_NAME, NAMES, RANKS
from engine.kinds import LORA_FOLDER
from errors.build_config import ConflictingBuildKeys


def check_adapters(config: BuildConfig) -> None:
    """Raise E1204 for an adapter without exactly one source."""
    for name, adapter in (config.lora or {}).items():
        if (adapter.model_id is None) == (adapter.model_path is None):
            raise ConflictingBuildKeys(
                problem=f"does not give exactly one source for lora.{name}",
                remedy="give it one of model_id and model_path",
            )


def adapter_steps(config: BuildConfig) -> list[Step]:
    """Obtain each adapter and check its rank."""
    return [
        Step(f"LoRA adapter {name} ({adapter.model_path or adapter.model_id})", _step(name, adapter))
        for name, adapter in sorted((config.lora or {}).items())
    ]


def adapter_configs(work: Work) -> list[dict[str, Any]]:
    """Return the configurations of the adapters that the steps obtained."""
    folders = [work.directory / LORA_FOLDER / name for name in work.config.lora or {}]
    return [json.loads((folder / CONFIG_NAME).read_bytes()) for folder in folders]


def _step(name: str, adapter: LoraAdapter) -> Callable[[Work], None]:
    def run(work: Work) -> None:
        files = obtain_files(adapter, NAMES, work)
        folder = work.directory / LORA_FOLDER / name
        folder.mkdir(parents=True)
        for file_name, path in files.files.items():
            place(path, folder / file_name)
        rank = read_object(files, CONFIG_NAME).get("r")
        if not isinstance(rank, int) or not 1 <= rank <= RANKS[-1]:
            raise files.unusable(
                f"its {CONFIG_NAME} has the rank (r) {rank!r}, not one from 1 to {RANKS[-1]}"
            )

    return run
