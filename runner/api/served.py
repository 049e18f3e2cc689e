"""What this process serves: a model under its names, with the settings of the runner."""

from dataclasses import dataclass

from errors.api import UnknownModel
from runner.generation.model import ModelFacts
from runner.settings.settings import Settings


@dataclass(frozen=True)
class Served:
    model: ModelFacts
    settings: Settings
    engine_kind: str
    names: tuple[str, ...]
    """Of the model without adapters."""
    adapters: tuple[str, ...] = ()
    """The engine's LoRA adapters, each of which is a model of its own."""

    def find(self, name: str | None) -> str:
        """The name to answer with. Raises E1603 for another model's."""
        if name is None:
            return self.names[0]
        if name not in (*self.names, *self.adapters):
            raise UnknownModel(model=name, served=" or ".join((*self.names, *self.adapters)))
        return name

    def adapter(self, name: str | None) -> str | None:
        """The adapter of that name; None for the model without adapters, whose names come first."""
        return name if name in self.adapters and name not in self.names else None
