import dataclasses
from typing import Any


@dataclasses.dataclass
class PlaceholderRange:
    offset: int
    length: int

    def get_num_embeds(self) -> int:
        return self.length


@dataclasses.dataclass
class MultiModalFeatureSpec:
    data: Any
    modality: str
    identifier: str
    mm_position: PlaceholderRange
    mm_hash: str | None = None
