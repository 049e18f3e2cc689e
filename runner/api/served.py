"""The model that this process serves: its names, and the settings of the runner."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from engine.kinds import supports
from errors.api import UnknownModel
from runner.engines.protocol.messages import Ready, Sampling
from runner.generation.model import ModelFacts
from runner.settings.settings import Settings

_MIN_TOP_P = 1e-6


def core_values(given: Mapping[str, Any]) -> dict[str, Any]:
    """Convert sampling parameters of the API to those of the core."""
    values = dict(given)
    if values.get("top_p") == 0:
        values["top_p"] = (
            _MIN_TOP_P  # In the core 0 means no limit; here it means the most likely token only.
        )
    return values


@dataclass
class EngineState:
    """What the engine server last told of the engine."""

    adapters: Mapping[str, str] = field(default_factory=dict)
    """Digests of the LoRA adapters that were loaded while it serves, by name."""
    is_asleep: bool = False
    ready: Ready | None = None

    @property
    def max_images(self) -> int:
        """Number of images that a request may have."""
        return 0 if self.ready is None else self.ready.max_images

    def take(self, ready: Ready) -> None:
        self.adapters, self.is_asleep, self.ready = ready.adapters, ready.is_asleep, ready


@dataclass(frozen=True)
class Served:
    model: ModelFacts
    settings: Settings
    engine_kind: str
    names: tuple[str, ...]
    """Names of the model without adapters."""
    adapters: Mapping[str, str | None] = field(default_factory=dict)
    """Digests of the engine's LoRA adapters, each of which is a model of its own; None: not known."""
    engine: EngineState = field(default_factory=EngineState)

    @cached_property
    def sampling(self) -> Sampling:
        """The sampling parameters of a request that sets none: those that the engine supports."""
        given = {
            name: value
            for name, value in self.model.sampling_defaults.items()
            if name in Sampling.__struct_fields__ and (name != "min_p" or supports(self.engine_kind, "min_p"))
        }
        return Sampling(**core_values(given))

    @property
    def default_max_tokens(self) -> int:
        """Length of a chat's answer."""
        return int(self.model.sampling_defaults.get("max_new_tokens", self.model.max_sequence_length))

    def find(self, name: str | None) -> str:
        """Return the name to answer with. Raises E1603 for the name of another model."""
        if name is None:
            return self.names[0]
        if name not in self.names and self.adapter(name) is None:
            raise UnknownModel(model=name, served=" or ".join(self.models))
        return name

    @property
    def models(self) -> tuple[str, ...]:
        """All names, with those of adapters."""
        return (*self.names, *self.adapters, *self.engine.adapters)

    def digest(self, name: str) -> str | None:
        """Return the digest of an adapter; None if it is not known, or ``name`` is no adapter."""
        if name in self.names:
            return None
        return self.adapters.get(name) or self.engine.adapters.get(name)

    def adapter(self, name: str | None) -> str | None:
        """Return the adapter of that name; None for the model without adapters, whose names come first."""
        if name in self.names:
            return None
        return name if name in self.adapters or name in self.engine.adapters else None
