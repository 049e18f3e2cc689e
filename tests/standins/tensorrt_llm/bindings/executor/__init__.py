"""A stand-in for ``tensorrt_llm.bindings.executor`` 0.16.0: its published interface, strictly.

Names, order, defaults, types and exceptions are those of the real bindings (v0.16.0's executor.h and the
pybind sources of its cycle); what computes tokens is ``_generator``. What nothing here uses is left out.
"""

# ruff: noqa: F401, F403

from ._config import *
from ._executor import Executor
from ._request import *
from ._result import FinishReason, InflightBatchingStats, IterationStats, KvCacheStats, Response, Result

__version__ = "0.16.0"
