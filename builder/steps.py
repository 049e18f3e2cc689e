"""A build as an ordered list of named steps, which can be shown before any of them runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic import SecretStr

from builder.config.config import BuildConfig
from builder.tokenizer import place_tokenizer
from builder.weights.model_files import Model
from builder.weights.pickled_weights import check_pickled_weights
from builder.weights.weights import obtain_model
from engine.progress import Progress
from engine.redact import redact_url
from engine.tar.manifest import EngineFacts, Manifest
from engine.tar.pack import pack


@dataclass
class Work:
    """What the steps of one build hand to each other.

    ``directory`` becomes the engine's content, packed into ``destination`` with ``packed_config`` in its
    manifest; ``scratch`` is for everything else and goes with the build.
    """

    config: BuildConfig
    hf_token: SecretStr | None
    folders: Sequence[Path]
    cache: Path
    directory: Path
    scratch: Path
    destination: Path
    packed_config: Mapping[str, Any]
    report: Callable[[str], None]
    progress: Progress | None
    only_public: bool
    """The config is a stranger's: its URLs must not lead to private addresses."""
    resources: ExitStack
    """Closed when the build ends, however it does: locks that steps take."""
    model: Model = field(init=False)
    facts: EngineFacts = field(init=False)
    vocab_size: int = field(init=False)
    manifest: Manifest = field(init=False)


@dataclass(frozen=True)
class Step:
    """One step of a build: what it is called, and what it does to the ``Work``."""

    title: str
    run: Callable[[Work], None]


class EnginePlan(Protocol):
    """How one kind builds one config. ``takes_weights``: whether the model's weights are needed."""

    takes_weights: bool

    @property
    def notes(self) -> Sequence[str]:
        """What the config's author should know, whatever the model."""

    def fit_model(self, values: Mapping[str, Any]) -> list[str]:
        """Check the plan against the model's config.json and take up what it tells; lines about sizes."""

    def steps(self) -> Sequence[Step]: ...


def download_step(config: BuildConfig, *, with_weights: bool) -> Step:
    """Obtain the model; ``with_weights`` False takes no more of it than its tokenizer needs."""
    weights = config.weight_format or "safetensors, else bin, else pt"
    taken = weights if with_weights else "tokenizer only"
    if config.model_path is not None:
        title = f"read {config.model_path} ({taken})"
    elif config.model_tar_url is not None:
        title = f"fetch {redact_url(config.model_tar_url)} ({taken})"
    else:
        title = f"download {config.model_id}@{config.revision} ({taken})"

    return Step(title, lambda work: obtain(work, work.config, with_weights=with_weights))


def obtain(work: Work, config: BuildConfig, *, with_weights: bool) -> None:
    """Make ``work.model`` the files that ``config`` names; a line tells what they are."""
    work.model = obtain_model(
        config,
        folders=work.folders,
        token=work.hf_token,
        cache=work.cache,
        scratch=work.scratch,
        with_weights=with_weights,
        progress=work.progress,
        only_public=work.only_public,
    )
    check_pickled_weights(work.model)
    revision = f" at {work.model.revision}" if work.model.revision else ""
    size_bytes = sum(path.stat().st_size for path in work.model.files.values())
    work.report(f"{work.model.name}{revision}: {len(work.model.files)} files, {size_bytes / 1e6:,.1f} MB")


def place_fast_tokenizer(work: Work) -> None:
    """The tokenizer that every engine carries."""
    work.vocab_size = place_tokenizer(
        work.model,
        work.directory,
        scratch=work.scratch,
        trust_remote_code=work.config.trust_remote_code,
    )


def pack_step() -> Step:
    """Make engine.tar of what the steps before have put together."""

    def run(work: Work) -> None:
        facts = {**work.facts.model_dump(), "build_config": dict(work.packed_config)}
        work.manifest = pack(
            work.directory, EngineFacts.model_validate(facts), work.destination, progress=work.progress
        )
        size_bytes = work.destination.stat().st_size
        work.report(f"{work.destination.name}: {len(work.manifest.files)} files, {size_bytes / 1e6:,.1f} MB")

    return Step("pack engine.tar", run)
