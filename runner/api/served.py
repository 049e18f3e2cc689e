"""What this process serves: a model under its names, with the settings of the runner."""

from __future__ import annotations

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

    def find(self, name: str | None) -> str:
        """The name to answer with. Raises E1603 for another model's."""
        if name is None:
            return self.names[0]
        if name not in self.names:
            raise UnknownModel(model=name, served=" or ".join(self.names))
        return name
