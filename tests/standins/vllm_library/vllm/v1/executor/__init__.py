from __future__ import annotations

from typing import Any


class Executor:
    @staticmethod
    def get_class(vllm_config: Any) -> type[Executor]:
        return Executor
