"""Plans of the engine kinds: a module for each turns a build config into steps."""

import importlib
from collections.abc import Sequence

from builder.config.config import BuildConfig
from builder.steps import EnginePlan, Step, pack_step
from engine.kinds import KINDS, Kind
from errors.build_config import ConflictingBuildKeys

_MODEL_KEYS = frozenset(
    {
        *("version", "engine", "backend", "model_id", "revision", "model_path", "model_tar_url"),
        "trust_remote_code",
    }
)


def engine_plan(config: BuildConfig) -> EnginePlan:
    """Return the plan for ``config``. Raises E1204 and the errors of its kind."""
    _check_source(config)
    kind = KINDS[config.engine_kind]
    if kind.builder is None:
        raise ConflictingBuildKeys(
            problem=f"asks for engine {kind.name}, which this builder does not build",
            remedy="choose another engine",
        )
    builder = importlib.import_module(kind.builder)
    given = {name for name in config.model_fields_set if getattr(config, name) is not None}
    if config.backend is not None and (kind.backend or ("", ""))[1] != config.backend:
        raise ConflictingBuildKeys(
            problem=f"gives backend {config.backend}, which engine {kind.name} does not have",
            remedy="leave it out, or write engine: tensorrt_llm",
        )
    if foreign := sorted(given - builder.KEYS - _MODEL_KEYS):
        raise ConflictingBuildKeys(
            problem=f"gives {', '.join(foreign)}, which engine {kind.name} does not use",
            remedy=_where_used(kind, foreign),
        )
    plan: EnginePlan = builder.Plan(config)
    return plan


def _where_used(kind: Kind, keys: Sequence[str]) -> str:
    """Return what to do about keys that the kind does not use: another backend of its engine may use them."""
    for other in KINDS.values():
        engine, backend = other.backend or ("", "")
        if kind.backend is None or kind.backend[0] != engine or other.builder is None:
            continue
        if importlib.import_module(other.builder).KEYS.issuperset(keys):
            return f"leave it out, or write backend: {backend}"
    return "leave it out or choose another engine"


def all_steps(planned: EnginePlan, last: Step | None = None) -> list[tuple[str, Step]]:
    """Return each step with its line: number and title. ``last`` packs an engine.tar unless it is given."""
    steps = [*planned.steps(), last or pack_step()]
    return [(f"[{number}/{len(steps)}] {step.title}", step) for number, step in enumerate(steps, 1)]


def _check_source(config: BuildConfig) -> None:
    problem, places = None, [config.model_path, config.model_tar_url]
    if not any([config.model_id, *places]):
        problem, remedy = "names no model", "give one of model_id, model_path and model_tar_url"
    elif all(places):
        problem, remedy = "gives both model_path and model_tar_url", "leave one of them out"
    elif "revision" in config.model_fields_set and any(places):
        problem = "gives a revision for a model that does not come from the Hub"
        remedy = "leave out revision, or both model_path and model_tar_url"
    elif config.gguf_file is not None and config.weight_format is not None:
        problem, remedy = "gives a weight_format for a GGUF file", "leave it out"
    if problem is not None:
        raise ConflictingBuildKeys(problem=problem, remedy=remedy)
