"""An adapter's name that means nothing to an engine is refused with what that engine takes instead."""

from __future__ import annotations

import pytest

from errors.requests import UnsupportedArgument
from runner.engines.protocol.checks import check_adapter_name


@pytest.mark.parametrize(
    ("engine_kind", "remedy"),
    [("tensorrt_llm", "lora_task_id"), ("transformers", "leave it out"), ("paced", "leave it out")],
)
def test_engines_without_names_refuse_them(engine_kind: str, remedy: str) -> None:
    check_adapter_name(None, engine_kind)
    with pytest.raises(UnsupportedArgument, match=remedy):
        check_adapter_name("french", engine_kind)


def test_an_engine_that_has_names_finds_out_itself() -> None:
    check_adapter_name("german", "vllm")
