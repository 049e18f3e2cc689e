"""The stand-in for TensorRT-LLM's bindings, in this process."""

import sys
from importlib import import_module
from typing import Any

from tests.runner.tensorrt_llm_engine import STANDINS


def bindings() -> Any:
    if str(STANDINS) not in sys.path:
        sys.path.append(str(STANDINS))
    return import_module("tensorrt_llm.bindings.executor")
