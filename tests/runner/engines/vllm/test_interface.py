"""The real vLLM has what the adapter uses. Run by ``make test-vllm`` and ``make test-gpu``."""

import json
import os
import subprocess
import sys
from difflib import unified_diff
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec

import pytest

from runner.engines.protocol.checks import MAX_LOGIT_BIASES
from runner.engines.vllm.interface import CORE_MODULES, PINNED_VERSION, USES, check_vllm
from tests.runner.engines.vllm.vllm_engines import LIBRARY

pytest.importorskip("vllm", reason="vLLM is not in this environment")
pinned = pytest.mark.skipif(version("vllm") != PINNED_VERSION, reason="this is not the pinned vLLM")

CLASSES = [name for name in USES if name.rpartition(".")[2][0].isupper()]

_DESCRIBE = """
import importlib, inspect, json, sys
def describe(name, used):
    module, _, kind = name.rpartition(".")
    thing = getattr(importlib.import_module(module), kind)
    if hasattr(thing, "__members__"):
        return {key: str(value) for key, value in thing.__members__.items() if key in used}
    methods = {key: [*inspect.signature(value).parameters]
               for key, value in inspect.getmembers(thing, inspect.isfunction) if key + "(" in used}
    fields = getattr(thing, "__struct_fields__", getattr(thing, "__dataclass_fields__", {}))
    return {"fields": [*fields], **methods}
print(json.dumps({name: describe(name, used) for name, used in json.loads(sys.argv[1]).items()}))
"""


def describe(path: str | None) -> dict[str, dict[str, list[str]]]:
    environment = {**os.environ, **({"PYTHONPATH": path} if path else {})}
    command = [sys.executable, "-c", _DESCRIBE, json.dumps({name: USES[name] for name in CLASSES})]
    answer = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    described: dict[str, dict[str, list[str]]] = json.loads(answer.stdout.splitlines()[-1])
    return described


def test_vllm_has_all_that_the_adapter_uses() -> None:
    warnings: list[str] = []
    check_vllm(warnings.append)
    assert all(find_spec(name) for name in CORE_MODULES)
    assert bool(warnings) == (version("vllm") != PINNED_VERSION)


@pinned
def test_the_stand_in_has_what_vllm_has_and_nothing_more() -> None:
    real, standing_in = describe(None), describe(str(LIBRARY))
    for name, parts in standing_in.items():
        for part, members in parts.items():
            if part == "fields":
                assert [each for each in members if each not in real[name]["fields"]] == [], name
            else:
                assert real[name][part] == members, f"{name}.{part}"


@pinned
def test_requests_are_refused_before_vllm_ends_the_engine_for_them() -> None:
    limits = import_module("vllm.v1.worker.gpu.sample.logit_bias")
    request = import_module("runner.engines.vllm.request")
    assert limits.MAX_NUM_STOP_TOKEN_IDS == request._MAX_STOP_IDS
    assert limits.MAX_NUM_LOGIT_BIAS_TOKENS == MAX_LOGIT_BIASES


@pinned
def test_the_arguments_that_the_builder_knows_are_vllms() -> None:
    listed = import_module("tools.list_vllm_arguments")
    known, found = listed.TARGET.read_text(), listed.document()
    changes = [*unified_diff(known.splitlines(), found.splitlines(), n=0, lineterm="")]
    assert not changes, "\n".join(changes)
