"""What a build would do, before it does it: its commands, downloads and sizes. No weights are downloaded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from builder.build import OWN_FOLDER, first_token
from builder.config.config import BuildConfig
from builder.config.file import ConfigFile, read_config
from builder.kinds import all_steps, engine_plan
from builder.sizes.words import in_words
from builder.steps import EnginePlan
from builder.weights import checkpoint
from builder.weights.files import cache_folder
from builder.weights.hub import Hub
from builder.weights.model_files import Model, Sources
from builder.weights.weights import obtain_model, wanted_names
from errors.build import DownloadFailed
from errors.requests import InvalidInput

_GIVE_CONFIG = "give the model's config.json with --model-config"


def plan_lines(config_source: str | Path, *, model_config: Path | None = None) -> Iterator[str]:
    """The plan of the config at ``config_source`` (path or URL).

    ``model_config`` is a local copy of the model's config.json; without one it is downloaded. If the Hub
    can't be reached, a line says so in place of sizes, and DownloadFailed is raised after it. Raises 12xx
    for a config that can't be built, before the first line.
    """
    file = read_config(config_source)
    planned = engine_plan(file.config)
    failure = None
    try:
        sizes = list(_sizes(file, planned, model_config))
    except DownloadFailed as exc:
        failure = exc
        sizes = [f"not known     downloads and sizes; {_GIVE_CONFIG}"]
    yield from [*file.notes, *planned.notes, *(line for line, _ in all_steps(planned)), *sizes]
    if failure is not None:
        raise failure


def _sizes(file: ConfigFile, planned: EnginePlan, model_config: Path | None) -> Iterator[str]:
    config = file.config
    if model_config is not None:
        yield from planned.fit_model(_read_model_config(model_config))
    elif config.model_path is not None:
        sources = Sources(
            folders=[*filter(None, [file.folder]), OWN_FOLDER],
            hf_token=first_token(None, file.hf_token),
            cache=cache_folder(),
            scratch=cache_folder(),
        )
        model = obtain_model(config, sources, with_weights=planned.takes_weights)
        yield from _files("model files", {name: path.stat().st_size for name, path in model.files.items()})
        yield from planned.fit_model(model_values(model, config))
    elif config.model_tar_url is not None:
        yield f"not known     downloads and sizes: the model is in a tar; {_GIVE_CONFIG}"
    else:
        yield from _sizes_on_hub(file, planned)


def model_values(model: Model, config: BuildConfig) -> Mapping[str, Any]:
    """What the model's config.json says, or would say once its GGUF file is converted."""
    if config.gguf_file is None:
        return checkpoint.read_config(model).values
    from builder.gguf.architecture import read_architecture
    from builder.gguf.header import read_header

    return read_architecture(read_header(model.name, model.files[config.gguf_file])).values


def _sizes_on_hub(file: ConfigFile, planned: EnginePlan) -> Iterator[str]:
    config = file.config
    assert config.model_id is not None, "a checked config names a model"
    hub = Hub(token=first_token(None, file.hf_token), cache=cache_folder())
    snapshot = hub.snapshot(config.model_id, config.revision)
    names = wanted_names(config, snapshot.names, with_weights=planned.takes_weights)
    sizes = {file.name: file.size_bytes for file in snapshot.files if file.name in names}
    if config.gguf_file is not None:
        yield from _files("download", sizes, f" at {snapshot.commit}")
        yield "not known     sizes: the model's shape is in the GGUF file"
        return
    found = hub.fetch(snapshot, {"config.json"} & set(snapshot.names), None)
    values = checkpoint.read_config(Model(config.model_name, snapshot.commit, found)).values
    yield from _files("download", sizes, f" at {snapshot.commit}")
    yield from planned.fit_model(values)


def _files(verb: str, sizes_bytes: Mapping[str, int | None], at: str = "") -> Iterator[str]:
    """Number and sizes of files; None is the size of one for which the Hub has none."""
    total = sum(size_bytes or 0 for size_bytes in sizes_bytes.values())
    words = (
        name if size_bytes is None else f"{name} ({in_words(size_bytes)})"
        for name, size_bytes in sorted(sizes_bytes.items())
    )
    yield f"{verb:<14}{len(sizes_bytes)} files, {in_words(total)}{at}"
    yield f"              {', '.join(words)}"


def _read_model_config(path: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise InvalidInput(name="--model-config", expected="a model's config.json", value=str(path))
    return values
