from typing import Any


class MultiModalBudget:
    def __init__(self, vllm_config: Any, mm_registry: Any, *, enable_cache: bool = True) -> None: ...
