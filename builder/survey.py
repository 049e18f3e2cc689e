"""What of a model is known before it is fetched: its files and their sizes, and its config.json."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from builder.config.config import BuildConfig
from builder.weights.checkpoint import read_config
from builder.weights.hub import Hub
from builder.weights.model_files import Model
from builder.weights.weights import obtain_model, wanted_names
from errors.requests import InvalidInput


@dataclass(frozen=True)
class Survey:
    """``sizes_bytes`` by file, None where the Hub does not tell; ``values`` of config.json."""

    revision: str | None
    sizes_bytes: Mapping[str, int | None]
    values: Mapping[str, Any]


def survey(
    config: BuildConfig, *, folders: Sequence[Path], token: SecretStr | None, cache: Path, with_weights: bool
) -> Survey | None:
    """Look at the model that ``config`` names, taking no more than config.json; None for one in a tar.

    Raises what obtaining it would.
    """
    if config.model_tar_url is not None and config.model_path is None:
        return None
    if config.model_path is not None:
        model = obtain_model(
            config,
            folders=folders,
            token=token,
            cache=cache,
            scratch=cache,
            with_weights=with_weights,
            progress=None,
        )
        sizes = {name: path.stat().st_size for name, path in model.files.items()}
        return Survey(None, sizes, read_config(model).values)
    assert config.model_id is not None, "a checked config names a model"
    hub = Hub(token=token, cache=cache)
    snapshot = hub.snapshot(config.model_id, config.revision)
    names = wanted_names(config, snapshot.names, with_weights=with_weights)
    found = hub.fetch(snapshot, {"config.json"} & set(snapshot.names), None)
    values = read_config(Model(config.model_name, snapshot.commit, found)).values
    return Survey(
        snapshot.commit, {file.name: file.size_bytes for file in snapshot.files if file.name in names}, values
    )


def read_model_config(path: Path) -> Mapping[str, Any]:
    """The JSON object in ``path``, a model's config.json; InvalidInput if it is none."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as exc:
        raise InvalidInput(name="--model-config", expected="a model's config.json", value=str(path)) from exc
    if not isinstance(values, dict):
        raise InvalidInput(name="--model-config", expected="a model's config.json", value=str(path))
    return values
