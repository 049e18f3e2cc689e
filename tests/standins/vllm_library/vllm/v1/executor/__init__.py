from __future__ import annotations

from importlib import import_module
from typing import Any


class Executor:
    @staticmethod
    def get_class(vllm_config: Any) -> type[Executor]:
        found: type[Executor] = import_module("vllm.v1.executor.multiproc_executor").MultiprocExecutor
        return found
