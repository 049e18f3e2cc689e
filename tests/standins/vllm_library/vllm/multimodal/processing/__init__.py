import dataclasses
from typing import Any


class BaseProcessingInfo:
    def parse_mm_data(self, mm_data: Any, *, validate: bool = True) -> Any: ...


class BaseMultiModalProcessor:
    def apply(self, inputs: Any, timing_ctx: Any) -> Any: ...


@dataclasses.dataclass
class ProcessorInputs:
    prompt: list[int]
    mm_data_items: Any
