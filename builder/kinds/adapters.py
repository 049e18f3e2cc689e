"""LoRA adapters that an engine carries: a folder each, by name."""

from collections.abc import Callable

from builder.config.config import BuildConfig, LoraAdapter
from builder.steps import Step, Work
from builder.weights.files import place
from builder.weights.weights import obtain_files
from engine.adapters import CONFIG_NAME, NAMES, RANKS, AdapterShape, adapter_shape
from engine.kinds import LORA_FOLDER
from errors.build_config import ConflictingBuildKeys
from errors.requests import AdapterRefused


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


def adapter_shapes(work: Work) -> list[AdapterShape]:
    """Return rank and modules of the adapters that the steps obtained."""
    return [adapter_shape(name, work.directory / LORA_FOLDER / name) for name in work.config.lora or {}]


def check_rank(key: str, given: int | None, largest: int) -> None:
    """Raise E1204 if the limit ``given`` as ``key`` is below the ``largest`` rank of the adapters."""
    if given is not None and given < largest:
        problem = f"gives {key} {given}, but an adapter has the rank {largest}"
        raise ConflictingBuildKeys(problem=problem, remedy="leave it out: it is chosen by the adapters")


def _step(name: str, adapter: LoraAdapter) -> Callable[[Work], None]:
    def run(work: Work) -> None:
        files = obtain_files(adapter, NAMES, work)
        folder = work.directory / LORA_FOLDER / name
        folder.mkdir(parents=True)
        for file_name, path in files.files.items():
            place(path, folder / file_name)
        try:
            rank, _ = adapter_shape(name, folder)
        except AdapterRefused as exc:
            raise files.unusable(str(exc.facts["reason"])) from exc
        if rank > RANKS[-1]:
            raise files.unusable(f"its {CONFIG_NAME} has the rank {rank}, not one from 1 to {RANKS[-1]}")

    return run
