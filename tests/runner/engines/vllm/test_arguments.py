"""vLLM's environment."""

import os
from pathlib import Path
from typing import Any

import pytest

from runner.engines.vllm.arguments import prepare_environment

PLAN = "VLLM_ENABLE_STARTUP_PLAN"


@pytest.mark.parametrize(
    ("cache_dir", "set_to", "arguments", "expected"),
    [
        ("cache", None, {}, "1"),
        ("cache", "0", {}, "0"),
        (None, None, {}, None),
        # vLLM's fingerprint of a plan leaves it out: the memory of another value would be used.
        ("cache", None, {"gpu_memory_utilization": 0.5}, None),
        # Ranks on several machines: those without a plan would wait for the others to measure.
        ("cache", None, {"nnodes": 2}, None),
        ("cache", None, {"distributed_executor_backend": "ray"}, None),
    ],
)
def test_measured_memory_is_kept_in_the_cache_for_later_starts(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    cache_dir: str | None,
    set_to: str | None,
    arguments: dict[str, Any],
    expected: str | None,
) -> None:
    monkeypatch.setattr(os, "environ", {} if set_to is None else {PLAN: set_to})
    prepare_environment(arguments, cache_dir and str(tmp_path / cache_dir))
    assert os.environ.get(PLAN) == expected
    assert (cache_dir is not None) == ("VLLM_CACHE_ROOT" in os.environ)
