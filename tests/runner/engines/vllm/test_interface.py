"""Where the real vLLM is: that it has what the adapter uses. Run by ``make test-gpu``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.runner.engines.vllm.vllm_engines import LIBRARY

vllm = pytest.importorskip("vllm.v1.engine.core_client", reason="vLLM is not in this environment")

NAMES = (
    "vllm.v1.engine.EngineCoreRequest",
    "vllm.v1.engine.EngineCoreOutput",
    "vllm.v1.engine.EngineCoreOutputs",
    "vllm.v1.engine.FinishReason",
    "vllm.v1.engine.core_client.SyncMPClient",
    "vllm.v1.engine.utils.get_mp_context",
    "vllm.v1.metrics.stats.PrefillStats",
    "vllm.v1.metrics.stats.SchedulerStats",
    "vllm.sampling_params.SamplingParams",
    "vllm.sampling_params.StructuredOutputsParams",
    "vllm.pooling_params.PoolingParams",
    "vllm.config.PoolerConfig",
    "vllm.lora.request.LoRARequest",
    "vllm.v1.executor.Executor",
)

_DESCRIBE = """
import importlib, inspect, json, sys
def describe(name):
    module, _, kind = name.rpartition(".")
    thing = getattr(importlib.import_module(module), kind)
    if hasattr(thing, "__members__"):
        return {key: int(value) for key, value in thing.__members__.items()}
    used = ("get_output", "add_request", "abort_requests", "is_sleeping", "shutdown", "_send_input")
    methods = {key: [*inspect.signature(value).parameters]
               for key, value in inspect.getmembers(thing, inspect.isfunction) if key in used}
    fields = getattr(thing, "__struct_fields__", getattr(thing, "__dataclass_fields__", {}))
    return {"fields": [*fields], **methods}
print(json.dumps({name: describe(name) for name in sys.argv[1:]}))
"""


def describe(path: str | None) -> dict[str, dict[str, list[str]]]:
    environment = {**os.environ, **({"PYTHONPATH": path} if path else {})}
    command = [sys.executable, "-c", _DESCRIBE, *NAMES]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    described: dict[str, dict[str, list[str]]] = json.loads(answer.stdout.splitlines()[-1])
    return described


def test_the_stand_in_has_what_vllm_has_and_nothing_more() -> None:
    real, standing_in = describe(None), describe(str(LIBRARY))
    for name, parts in standing_in.items():
        for part, members in parts.items():
            if part == "fields":
                assert [each for each in members if each not in real[name]["fields"]] == [], name
            else:
                assert real[name][part] == members, f"{name}.{part}"


def test_the_arguments_that_the_builder_knows_are_vllms() -> None:
    program = "from tools.list_vllm_arguments import *; assert TARGET.read_text() == document()"
    root = Path(__file__).resolve().parents[4]
    assert subprocess.run([sys.executable, "-c", program], cwd=root).returncode == 0
