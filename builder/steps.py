"""The steps of a build: named, in order, and shown before any of them runs."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from builder.config.config import BuildConfig
from builder.tokenizer import place_tokenizer
from builder.weights.checkpoint import check_pickled_weights, read_object
from builder.weights.files import place
from builder.weights.model_files import Model, Sources
from builder.weights.weights import obtain_model
from engine.directory import file_sizes
from engine.redact import redact_url
from engine.sampling_defaults import GENERATION_CONFIG
from engine.tar.manifest import MANIFEST_NAME, EngineFacts, FileEntry, Manifest, make_manifest, manifest_bytes
from engine.tar.pack import pack
from engine.words import in_words, num_files


@dataclass(kw_only=True)
class Work(Sources):
    """State of one build, passed from step to step.

    ``directory`` has the engine's content, which becomes ``destination`` or is packed into it; ``scratch`` is
    for everything else and is removed after the build.
    """

    config: BuildConfig
    directory: Path
    report: Callable[[str], None]
    resources: ExitStack
    """Locks that steps take, closed when the build ends."""
    serves_here: bool = False
    """True if the engine is to be served here: weights on another disk are linked, not copied."""
    destination: Path = field(init=False)
    model: Model = field(init=False)
    facts: EngineFacts = field(init=False)
    vocab_size: int = field(init=False)
    manifest: Manifest = field(init=False)


@dataclass(frozen=True)
class Step:
    title: str
    run: Callable[[Work], None]


class EnginePlan(ABC):
    """Steps of an engine kind for a config. ``takes_weights`` is true if it needs the model's weights."""

    takes_weights = True
    embeds = False
    """True if the model makes embeddings. It is known once the model's files are listed."""
    file_bytes: int | None = None
    """Size of the model's files of weights. It is known once they are listed."""
    file_dtype: str | None = None
    """Commonest data type of the weights in these files; None if it is not known."""
    notes: Sequence[str] = ()
    """Notes for the config's author; they do not depend on the model."""

    def __init__(self, config: BuildConfig) -> None:
        self.config = config

    def check_values(self, values: Mapping[str, Any]) -> None:  # noqa: B027
        """Check the config against the model's config.json. Raises E1203 and E1204."""

    def fit_model(self, values: Mapping[str, Any]) -> list[str]:
        """Check the plan against the model's config.json, complete it, and return lines about sizes."""
        return []

    @abstractmethod
    def steps(self) -> Sequence[Step]: ...


def model_steps(config: BuildConfig) -> list[Step]:
    """Obtain the model with its weights, and convert a GGUF file."""
    steps = [download_step(config, with_weights=True)]
    if config.gguf_file is not None:
        steps.append(Step(f"convert {config.gguf_file} to safetensors", _convert_gguf))
    return steps


def _convert_gguf(work: Work) -> None:
    # NOTE: imported where it is needed, because the gguf library takes a third of a second.
    from builder.gguf.convert import convert

    assert work.config.gguf_file is not None
    work.model = convert(
        work.model, work.config.gguf_file, work.scratch / "gguf", work.config.dtype, work.progress
    )


def download_step(config: BuildConfig, *, with_weights: bool) -> Step:
    """Obtain the model; without ``with_weights`` only what its tokenizer needs."""
    weights = config.gguf_file or config.weight_format or "safetensors, else bin, else pt"
    taken = weights if with_weights else "tokenizer only"
    if config.model_path is not None:
        title = f"read {config.model_path} ({taken})"
    elif config.model_tar_url is not None:
        title = f"fetch {redact_url(config.model_tar_url)} ({taken})"
    else:
        title = f"download {config.model_id}@{config.revision} ({taken})"

    return Step(title, lambda work: obtain(work, work.config, with_weights=with_weights))


def obtain(work: Work, config: BuildConfig, *, with_weights: bool) -> None:
    """Set ``work.model`` to the files of the model that ``config`` names, and report them."""
    work.model = obtain_model(config, work, with_weights=with_weights)
    check_pickled_weights(work.model)
    revision = f" at {work.model.revision}" if work.model.revision else ""
    size_bytes = sum(path.stat().st_size for path in work.model.files.values())
    work.report(f"{work.model.name}{revision}: {num_files(len(work.model.files))}, {in_words(size_bytes)}")


def place_generation_config(work: Work) -> None:
    """Place the file of end tokens and sampling parameters, if there is one. Raises E1210."""
    if GENERATION_CONFIG in work.model.files:
        read_object(work.model, GENERATION_CONFIG)
        place(work.model.files[GENERATION_CONFIG], work.directory / GENERATION_CONFIG)


def place_fast_tokenizer(work: Work) -> None:
    work.vocab_size = place_tokenizer(
        work.model, work.directory, scratch=work.scratch, trust_remote_code=work.config.trust_remote_code
    )


def pack_step() -> Step:
    def run(work: Work) -> None:
        work.manifest = pack(work.directory, _facts(work), work.destination, progress=work.progress)
        size_bytes = work.destination.stat().st_size
        work.report(f"{work.destination.name}: {num_files(len(work.manifest.files))}, {in_words(size_bytes)}")

    return Step("pack engine.tar", run)


def folder_step() -> Step:
    def run(work: Work) -> None:
        files = {name: FileEntry(size_bytes, sha256=None) for name, size_bytes in file_sizes(work.directory)}
        work.manifest = make_manifest(_facts(work), files, str(work.destination))
        (work.directory / MANIFEST_NAME).write_bytes(manifest_bytes(work.manifest))
        work.directory.rename(work.destination)

    return Step("engine's folder", run)


def _facts(work: Work) -> EngineFacts:
    origin = {"model_id": work.model.name, "revision": work.model.revision}
    config = work.config.model_dump(mode="json", exclude_unset=True)
    return EngineFacts(**work.facts.model_dump() | origin | {"build_config": config})
