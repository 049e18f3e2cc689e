"""Obtain a model's files: from the Hugging Face Hub, from a tar, or from a folder that ships."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

from pydantic import SecretStr

from builder.config.config import BuildConfig, LoraAdapter
from builder.weights.hub import Hub
from builder.weights.model_files import Model, supporting_names, weight_names
from builder.weights.model_tar import obtain_model_tar
from engine.progress import Progress
from errors.build_config import ModelPathInvalid, ModelUnusable


def obtain_model(
    config: BuildConfig,
    *,
    folders: Sequence[Path],
    token: SecretStr | None,
    cache: Path,
    scratch: Path,
    with_weights: bool,
    progress: Progress | None,
    only_public: bool = False,
) -> Model:
    """The files that ``config`` asks for: configuration, tokenizer and, if wanted, one set of weights.

    ``folders`` are what ``model_path`` may be relative to, the first that has it counts. model_path wins
    over model_tar_url, and that over model_id, which is then just the model's name. ``only_public``: the
    config comes from a caller, and its URLs must not lead to private addresses.
    """
    if config.model_path is not None:
        folder = _find(config.model_path, folders)
        return _of_folder(config, folder, revision=None, with_weights=with_weights)
    if config.model_tar_url is not None:
        folder, digest = obtain_model_tar(
            config.model_tar_url, cache=cache, scratch=scratch, progress=progress, only_public=only_public
        )
        return _of_folder(config, folder, revision=f"sha256:{digest}", with_weights=with_weights)
    assert config.model_id is not None, "a checked config names a model"
    hub = Hub(token=token, cache=cache)
    snapshot = hub.snapshot(config.model_id, config.revision)
    names = wanted_names(config, snapshot.names, with_weights=with_weights)
    return Model(config.model_id, snapshot.commit, hub.fetch(snapshot, names, progress))


def obtain_files(
    source: LoraAdapter,
    names: Sequence[str],
    *,
    folders: Sequence[Path],
    token: SecretStr | None,
    cache: Path,
    progress: Progress | None,
) -> Model:
    """Exactly the files ``names`` of ``source``; raises E1210 if one is missing."""
    if source.model_path is not None:
        folder = _find(source.model_path, folders)
        _require(source.model_path, names, [path.name for path in folder.iterdir() if path.is_file()])
        return Model(source.model_path, None, {name: folder / name for name in names})
    assert source.model_id is not None, "a checked config names one"
    hub = Hub(token=token, cache=cache)
    snapshot = hub.snapshot(source.model_id, source.revision)
    _require(source.model_id, names, snapshot.names)
    return Model(source.model_id, snapshot.commit, hub.fetch(snapshot, names, progress))


def _require(model: str, names: Sequence[str], present: Collection[str]) -> None:
    if missing := [name for name in names if name not in present]:
        raise ModelUnusable(model=model, problem=f"it has no {' and no '.join(missing)}")


def wanted_names(config: BuildConfig, names: Sequence[str], *, with_weights: bool) -> list[str]:
    """Which of a model's files a build takes."""
    wanted = supporting_names(names, code=config.trust_remote_code)
    if with_weights:
        wanted += weight_names(config.model_name, names, config.weight_format)[1]
    return wanted


def _of_folder(config: BuildConfig, folder: Path, *, revision: str | None, with_weights: bool) -> Model:
    names = [path.name for path in sorted(folder.iterdir()) if path.is_file()]
    wanted = wanted_names(config, names, with_weights=with_weights)
    return Model(config.model_name, revision, {name: folder / name for name in wanted})


def _find(model_path: str, folders: Sequence[Path]) -> Path:
    """The folder ``model_path`` under the first of ``folders`` that has it; links must not lead out of it."""
    for folder in folders:
        found = (folder / model_path).resolve()
        if not found.is_relative_to(folder.resolve()):
            problem = f"leads out of {folder}"
            raise ModelPathInvalid(model_path=model_path, problem=problem, remedy="put the model inside it")
        if found.is_dir():
            return found
    places = " nor in ".join(map(str, folders))
    raise ModelPathInvalid(
        model_path=model_path, problem=f"is not a folder in {places}", remedy="check the path"
    )
