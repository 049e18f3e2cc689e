"""A build told before it is done: its commands, its downloads, its sizes. Fetches no weights."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import starmap
from pathlib import Path

from builder.build import OWN_FOLDER, first_token
from builder.config.file import ConfigFile, read_config
from builder.kinds import all_steps, engine_plan, step_lines
from builder.sizes.words import in_words
from builder.steps import EnginePlan
from builder.survey import Survey, read_model_config, survey
from builder.weights.files import cache_folder
from errors.build import DownloadFailed

_GIVE_CONFIG = "give the model's config.json with --model-config"


def plan_lines(
    config_source: str | Path, *, model_config: Path | None = None, hf_token: str | None = None
) -> list[str]:
    """The plan of the config at ``config_source`` (path or URL), a line each.

    ``model_config`` is a model's config.json that is here. Raises 12xx for everything that can't be built;
    where the Hub can't be reached, a line tells what is missing for it.
    """
    file = read_config(config_source)
    planned = engine_plan(file.config)
    sizes = list(_sizes(file, planned, model_config, hf_token))
    return [*file.notes, *planned.notes, *step_lines(all_steps(planned)), *sizes]


def _sizes(
    file: ConfigFile, planned: EnginePlan, model_config: Path | None, hf_token: str | None
) -> Iterator[str]:
    if model_config is not None:
        yield from planned.fit_model(read_model_config(model_config))
        return
    folders = [*filter(None, [file.folder]), OWN_FOLDER]
    try:
        found = survey(
            file.config,
            folders=folders,
            token=first_token(hf_token, file.hf_token),
            cache=cache_folder(),
            with_weights=planned.takes_weights,
        )
    except DownloadFailed as exc:
        facts = exc.facts
        reason = f"{facts['endpoint']} can't be reached ({facts['reason']})"
        yield f"not known     downloads and sizes: {reason}; {_GIVE_CONFIG}"
        return
    if found is None:
        yield f"not known     downloads and sizes: the model is in a tar; {_GIVE_CONFIG}"
        return
    yield from _downloads(found)
    yield from planned.fit_model(found.values)


def _downloads(found: Survey) -> Iterator[str]:
    known = [size_bytes for size_bytes in found.sizes_bytes.values() if size_bytes is not None]
    at = f" at {found.revision}" if found.revision else ""
    verb = "download" if found.revision else "model files"
    yield f"{verb:<14}{len(found.sizes_bytes)} files, {in_words(sum(known))}{at}"
    yield f"              {', '.join(starmap(_file_words, sorted(found.sizes_bytes.items())))}"


def _file_words(name: str, size_bytes: int | None) -> str:
    return name if size_bytes is None else f"{name} ({in_words(size_bytes)})"
