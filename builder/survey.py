"""Survey of a model before its weights are downloaded: its files' sizes, and what config.json says."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from builder.config.config import BuildConfig
from builder.weights.checkpoint import read_config, safetensors_dtype
from builder.weights.hub import Hub, Snapshot
from builder.weights.model_files import Model, Sources, identity
from builder.weights.weights import obtain_model, wanted_names
from engine.kinds import KINDS

if TYPE_CHECKING:  # The gguf library takes a third of a second.
    from builder.gguf.header import GgufFile

_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth")
_CONVERTED = {".bin": 1, ".pt": 1, ".pth": 1, ".gguf": 4}
"""Factor by which safetensors are larger: a quantized GGUF file becomes 16 bits a weight."""


@dataclass(frozen=True)
class Survey:
    revision: str | None
    """Commit on the Hub; None for a folder."""
    identity: str
    """Digest that changes when the files do."""
    values: Mapping[str, Any]
    """Content of config.json, or of a GGUF file as if it had one; empty if neither is here."""
    sizes_bytes: Mapping[str, int | None]
    """Sizes by name; None for a file for which the Hub has none."""
    missing_bytes: int
    """Bytes to be downloaded."""
    weight_dtype: str | None = None
    """Commonest data type of the weights in the files; None if it is not known."""
    is_converted: bool = True
    """True if weights in another format become safetensors."""

    @property
    def total_bytes(self) -> int:
        return sum(filter(None, self.sizes_bytes.values()))

    @property
    def weight_bytes(self) -> int | None:
        """Size of the files of weights; None if there are none, or the Hub has no size for one."""
        sizes = [size for name, size in self.sizes_bytes.items() if PurePath(name).suffix in _WEIGHTS]
        known = [size for size in sizes if size is not None]
        return sum(known) if known and len(known) == len(sizes) else None

    @property
    def disk_bytes(self) -> int:
        """Bytes to be written: the download, and weights in another format as safetensors, at most."""
        if not self.is_converted:
            return self.missing_bytes
        sizes = ((PurePath(name).suffix, size or 0) for name, size in self.sizes_bytes.items())
        return self.missing_bytes + sum(_CONVERTED.get(suffix, 0) * size for suffix, size in sizes)


def survey(config: BuildConfig, sources: Sources, *, with_weights: bool) -> Survey:
    """Download config.json of a model on the Hub, or the header of its GGUF file, and nothing else.

    A model in a tar is downloaded as a whole.
    """
    is_converted = not KINDS[config.engine_kind].runs_gguf
    if config.model_path is not None or config.model_tar_url is not None:
        model = obtain_model(config, sources, with_weights=with_weights)
        sizes: dict[str, int | None] = {name: path.stat().st_size for name, path in model.files.items()}
        weights = [name for name in sizes if name.endswith(".safetensors")]
        dtype = safetensors_dtype(model, weights)
        return Survey(None, identity(model), _values(config, model), sizes, 0, dtype, is_converted)
    assert config.model_id is not None, "a checked config names a model"
    hub = Hub(token=sources.hf_token, cache=sources.cache)
    snapshot = hub.snapshot(config.model_id, config.revision)
    names = wanted_names(
        config, snapshot.names, lambda wanted: hub.fetch(snapshot, wanted, None), with_weights=with_weights
    )
    sizes = {file.name: file.size_bytes for file in snapshot.files if file.name in names}
    missing_bytes = hub.missing_bytes(snapshot, names)
    if config.gguf_file is not None and missing_bytes:
        values = _announced_values(hub, snapshot, config)
    else:
        read = {"config.json"} & set(snapshot.names) if config.gguf_file is None else set(names)
        values = _values(config, Model(config.model_name, snapshot.commit, hub.fetch(snapshot, read, None)))
    dtype = snapshot.weight_dtype if any(name.endswith(".safetensors") for name in names) else None
    return Survey(snapshot.commit, snapshot.commit, values, sizes, missing_bytes, dtype, is_converted)


def _announced_values(hub: Hub, snapshot: Snapshot, config: BuildConfig) -> Mapping[str, Any]:
    """Return what the header of a GGUF file on the Hub says."""
    from builder.gguf.header import read_header_of

    assert config.gguf_file is not None
    size_bytes = next(file.size_bytes for file in snapshot.files if file.name == config.gguf_file)
    with hub.beginning(snapshot, config.gguf_file) as file:
        header = read_header_of(config.model_name, config.gguf_file, file, size_bytes or sys.maxsize)
    return _gguf_values(config, header)


def _values(config: BuildConfig, model: Model) -> Mapping[str, Any]:
    if config.gguf_file is not None and config.gguf_file in model.files:
        from builder.gguf.header import read_header

        return _gguf_values(config, read_header(model.name, model.files[config.gguf_file]))
    return read_config(model).values if "config.json" in model.files and config.gguf_file is None else {}


def _gguf_values(config: BuildConfig, file: "GgufFile") -> Mapping[str, Any]:
    from builder.gguf.architecture import read_architecture, read_description

    return read_description(file) if KINDS[config.engine_kind].runs_gguf else read_architecture(file).values
