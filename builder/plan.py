"""Show what a build would do: its commands, downloads and sizes. No weights are downloaded."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from builder.build import open_work
from builder.config.file import ConfigFile, read_config
from builder.kinds import all_steps, engine_plan
from builder.sizes.memory import weight_bytes
from builder.sizes.model_shape import UnknownShape, shape_of
from builder.sizes.precision import stored_precision
from builder.steps import EnginePlan
from builder.survey import Survey, survey
from engine.kinds import KINDS, Kind
from engine.machine.gpu import visible_gpus
from engine.pooling import MODULES_NAME
from engine.words import download_time, in_words, num_files
from errors.build import DownloadFailed
from errors.requests import InvalidInput

_GIVE_CONFIG = "give the model's config.json with --model-config"


def plan_lines(config_source: str | Path | ConfigFile, *, model_config: Path | None = None) -> Iterator[str]:
    """Yield the plan of the config at ``config_source`` (path, URL, or read).

    ``model_config`` is a local copy of the model's config.json; without one it is downloaded. If the Hub
    can't be reached, a line says so in place of sizes, and DownloadFailed is raised after it. Raises 12xx
    for a config that can't be built, before the first line.
    """
    file = config_source if isinstance(config_source, ConfigFile) else read_config(config_source)
    planned = engine_plan(file.config)
    images = [*_images(KINDS[file.config.engine_kind])]
    failure = None
    try:
        sizes = list(_sizes(file, planned, model_config))
    except DownloadFailed as exc:
        failure = exc
        sizes = [f"not known     downloads and sizes; {_GIVE_CONFIG}"]
    yield from [*file.notes, *planned.notes, *(line for line, _ in all_steps(planned)), *images, *sizes]
    if failure is not None:
        raise failure


def _images(kind: Kind) -> Iterator[str]:
    """Yield the runner image that serves the engine on this machine's GPU, if it has one."""
    if kind.image is not None and (gpus := visible_gpus()):
        has_image = gpus[0].sm in kind.image_sms
        image = f"{kind.image}-{gpus[0].sm}" if has_image else f"no {kind.image} image"
        yield f"image         {image} for {gpus[0].name or 'this GPU'} (SM {gpus[0].sm})"


def _sizes(file: ConfigFile, planned: EnginePlan, model_config: Path | None) -> Iterator[str]:
    if model_config is not None:
        yield from planned.fit_model(_read_model_config(model_config))
    elif file.config.model_path is None and file.config.model_tar_url is not None:
        yield f"not known     downloads and sizes: the model is in a tar; {_GIVE_CONFIG}"
    else:
        with open_work(file, lambda line: None, None) as work:
            found = survey(file.config, work, with_weights=planned.takes_weights)
        planned.embeds = MODULES_NAME in found.sizes_bytes
        planned.file_bytes, planned.file_dtype = found.weight_bytes, found.weight_dtype
        if planned.embeds:
            yield "task          embeddings, at /v1/embeddings"
        verb, at = ("model files", "") if found.revision is None else ("download", f" at {found.revision}")
        yield from _files(verb, found.sizes_bytes, at)
        if found.revision is not None:
            yield f"time          about {download_time(found.total_bytes)} at 1 Gbit/s"
        if not KINDS[file.config.engine_kind].is_compiled:
            engine_tar = f"{in_words(_engine_bytes(file, found))} for engine.tar (`serve` makes none)"
            yield f"disk          {in_words(found.missing_bytes)} for the download, {engine_tar}"
        yield from planned.fit_model(found.values)


def _engine_bytes(file: ConfigFile, found: Survey) -> int:
    """Return the size of an engine that is not compiled. Most kinds unpack a GGUF file's weights."""
    if file.config.gguf_file is None or KINDS[file.config.engine_kind].runs_gguf:
        return found.total_bytes
    try:
        return weight_bytes(shape_of(found.values), stored_precision(found.values))
    except UnknownShape:
        return found.disk_bytes - found.missing_bytes


def _files(verb: str, sizes_bytes: Mapping[str, int | None], at: str = "") -> Iterator[str]:
    """Yield number and sizes of files; None is the size of one for which the Hub has none."""
    total = sum(size_bytes or 0 for size_bytes in sizes_bytes.values())
    words = (
        name if size_bytes is None else f"{name} ({in_words(size_bytes)})"
        for name, size_bytes in sorted(sizes_bytes.items())
    )
    yield f"{verb:<14}{num_files(len(sizes_bytes))}, {in_words(total)}{at}"
    yield f"              {', '.join(words)}"


def _read_model_config(path: Path) -> Mapping[str, Any]:
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        values = None
    if not isinstance(values, dict):
        raise InvalidInput(name="--model-config", expected="a model's config.json", value=str(path))
    return values
