"""The stand-in has NVIDIA's published signatures, and the adapter uses nothing else of the library."""

import inspect
import json
import subprocess
import sys
from typing import Any

import pytest

from tests.runner.engines.tensorrt_llm_pytorch.llm_api_engines import LIBRARY

SIGNATURES: dict[str, Any] = json.loads((LIBRARY / "signatures.json").read_text())
_DESCRIBE = """
import dataclasses, inspect, json, sys
sys.path.insert(0, sys.argv[1])
from tensorrt_llm import LLM, SamplingParams
from tensorrt_llm.executor import LoRARequest
from tensorrt_llm.llmapi import CompletionOutput, GuidedDecodingParams, RequestOutput
def signature(thing):
    found = inspect.signature(thing).parameters
    return {name: [] if each.default is each.empty else [each.default] for name, each in found.items()
            if name != "self" and each.kind is not each.VAR_KEYWORD}
def fields(thing):
    described = {}
    for each in dataclasses.fields(thing):
        has_factory = each.default_factory is not dataclasses.MISSING
        default = each.default_factory() if has_factory else each.default
        described[each.name] = [] if default is dataclasses.MISSING else [default]
    return described
print(json.dumps({
    "LLM": signature(LLM.__init__),
    **{f"LLM.{name}": signature(getattr(LLM, name))
       for name in ("generate_async", "get_stats_async", "get_kv_cache_events_async", "shutdown")},
    **{each.__name__: fields(each)
       for each in (SamplingParams, GuidedDecodingParams, CompletionOutput, LoRARequest)},
    "RequestOutput": sorted(name for name in dir(RequestOutput) if not name.startswith("_")),
}))
"""


@pytest.fixture(scope="module")
def described() -> dict[str, Any]:
    command = [sys.executable, "-c", _DESCRIBE, str(LIBRARY)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(answer.stdout)
    return found


@pytest.mark.parametrize("name", [name for name in SIGNATURES if name not in ("sources", "RequestOutput")])
def test_names_and_defaults_are_the_published_ones(described: dict[str, Any], name: str) -> None:
    published = {argument: default for argument, (_, *default) in SIGNATURES[name].items()}
    if name == "LLM":  # The others are its ``kwargs``, which it checks by the table.
        published = {argument: published[argument] for argument in described[name]}
        assert len(published) == 9
    assert described[name] == published


def test_a_result_has_the_published_methods(described: dict[str, Any]) -> None:
    assert set(SIGNATURES["RequestOutput"]["methods"]) <= set(described["RequestOutput"])


def test_each_signature_has_its_source() -> None:
    assert SIGNATURES["sources"].keys() == SIGNATURES.keys() - {"sources"}


def test_the_stand_in_refuses_what_is_unknown_or_of_another_type() -> None:
    script = inspect.cleandoc(
        """
        import sys
        sys.path.insert(0, sys.argv[1])
        from tensorrt_llm import LLM, SamplingParams
        for make in (
            lambda: LLM(model="m", max_seq_length=3),
            lambda: LLM(model="m", max_batch_size="3"),
            lambda: LLM(model="m", enable_lora=1),
            lambda: SamplingParams(top_k=1.5),
            lambda: SamplingParams(stop_token_ids=[1, "2"]),
            lambda: SamplingParams(logit_bias={}),
        ):
            try:
                make()
            except (TypeError, ValueError):
                continue
            raise SystemExit("it was taken")
        """
    )
    subprocess.run([sys.executable, "-c", script, str(LIBRARY)], check=True)
