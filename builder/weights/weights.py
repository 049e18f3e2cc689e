"""Obtain a model's files: from the Hugging Face Hub, from a tar, or from a folder that ships."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from builder.config.config import BuildConfig, LoraAdapter
from builder.weights.checkpoint import check_shards
from builder.weights.hub import Hub
from builder.weights.model_files import TEMPLATES, Model, Sources, index_name, supporting_names, weight_names
from builder.weights.model_tar import obtain_model_tar
from engine.pooling import pooling_names
from engine.tar.archive import LFS_POINTER
from errors.build_config import ModelPathInvalid, ModelUnusable


def obtain_model(config: BuildConfig, sources: Sources, *, with_weights: bool) -> Model:
    """Obtain the files that ``config`` asks for: configuration, tokenizer and, if wanted, one set of weights.

    model_path takes precedence over model_tar_url, and both over model_id, which is then just a name.
    """

    def choose(names: Sequence[str], fetch: Fetch) -> Sequence[str]:
        return wanted_names(config, names, fetch, with_weights=with_weights)

    if config.model_path is None and config.model_tar_url is not None:
        folder, digest = obtain_model_tar(config.model_tar_url, sources)
        return _of_folder(config.model_name, folder, choose, revision=f"sha256:{digest}")
    return _obtain(config, config.model_name, choose, sources)


def obtain_files(source: LoraAdapter, names: Sequence[str], sources: Sources) -> Model:
    """Obtain exactly the files ``names`` of ``source``. Raises E1210 if one is missing."""
    model = source.model_path or source.model_id or ""

    def choose(present: Sequence[str], fetch: Fetch) -> Sequence[str]:
        if missing := [name for name in names if name not in present]:
            raise ModelUnusable(model=model, problem=f"it has no {' and no '.join(missing)}")
        return names

    return _obtain(source, model, choose, sources)


Fetch = Callable[[Sequence[str]], Mapping[str, Path]]
"""Function that obtains small files of a model before the others."""
_Choose = Callable[[Sequence[str], Fetch], Sequence[str]]
"""Function that chooses among the names of a model's files."""


def _obtain(source: BuildConfig | LoraAdapter, model: str, choose: _Choose, sources: Sources) -> Model:
    if source.model_path is not None:
        return _of_folder(model, _find(source.model_path, sources.folders), choose)
    assert source.model_id is not None, "a checked config names a model"
    hub = Hub(token=sources.hf_token, cache=sources.cache)
    snapshot = hub.snapshot(source.model_id, source.revision)
    wanted = choose(snapshot.names, lambda names: hub.fetch(snapshot, names, None))
    return Model(model, snapshot.commit, hub.fetch(snapshot, wanted, sources.progress))


def wanted_names(config: BuildConfig, names: Sequence[str], fetch: Fetch, *, with_weights: bool) -> list[str]:
    """Return the names of files that ``config`` asks for. Raises E1210 if one of the weights is missing."""
    if config.gguf_file is not None:
        if config.gguf_file not in names:
            found = [name for name in names if name.endswith(".gguf")]
            offered = f"it has {', '.join(found[:5])}" if found else "it has no .gguf file"
            problem = f"it has no file {config.gguf_file!r}: {offered}"
            raise ModelUnusable(model=config.model_name, problem=problem)
        check_shards(Model(config.model_name, None, {}), [config.gguf_file], names, None)
        return [config.gguf_file]
    wanted = supporting_names(names, code=config.trust_remote_code)
    wanted += pooling_names(names)
    if with_weights:
        weight_format, weights = weight_names(config.model_name, names, config.weight_format)
        index = index_name(weight_format, weights)
        known = fetch([index]) if index is not None and index in names else {}
        check_shards(Model(config.model_name, None, known), weights, names, index)
        wanted += weights
    return wanted


def _of_folder(model: str, folder: Path, choose: _Choose, revision: str | None = None) -> Model:
    names = [path.name for path in sorted(folder.iterdir()) if path.is_file()]
    for pattern in ("*/config.json", TEMPLATES):
        names += [path.relative_to(folder).as_posix() for path in sorted(folder.glob(pattern))]

    def fetch(wanted: Sequence[str]) -> Mapping[str, Path]:
        return {name: folder / name for name in wanted}

    found = Model(model, revision, fetch(choose(names, fetch)))
    for name, path in found.files.items():
        with path.open("rb") as file:
            if file.read(len(LFS_POINTER)) == LFS_POINTER:
                raise found.unusable(f"{name} is a Git LFS pointer: run `git lfs pull` in its folder")
    return found


def _find(model_path: str, folders: Sequence[Path]) -> Path:
    """Find the folder ``model_path`` under the first of ``folders`` that has it.

    It and its files may be links that lead elsewhere, as in the Hub's own cache.
    """
    for folder in folders:
        if (found := folder / model_path).is_dir():
            return found
    places = " nor in ".join(map(str, folders))
    remedy = "check the path"
    if model_path.endswith(".gguf"):
        remedy = "give its folder as model_path, and its name as gguf_file"
    raise ModelPathInvalid(model_path=model_path, problem=f"is not a folder in {places}", remedy=remedy)
