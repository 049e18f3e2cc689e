"""The stand-in is as strict as the real bindings: what they refuse, it refuses, and their traps are there."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from tests.runner.engines.tensorrt_llm.bindings import bindings
from tests.runner.tensorrt_llm_engine import write_engine

trtllm = bindings()


@pytest.mark.parametrize(
    "make",
    [
        lambda: trtllm.Request([1], max_token=3),
        lambda: trtllm.Request([1], 3),
        lambda: trtllm.Request([1], max_tokens=3.0),
        lambda: trtllm.Request("1", max_tokens=3),
        lambda: trtllm.Request([1], max_tokens=3, num_return_sequences=2),
        lambda: trtllm.Request([1], max_tokens=3, stop_words=[1, 2]),
        lambda: trtllm.Request([1], max_tokens=3, embedding_bias=[0.5]),
        lambda: trtllm.SamplingConfig(1, 5),
        lambda: trtllm.SamplingConfig(seed=-1),
        lambda: trtllm.KvCacheConfig(max_tokens="8"),
        lambda: trtllm.OrchestratorConfig(True, None),
        lambda: trtllm.ExtendedRuntimePerfKnobConfig(cuda_graph_mode=True),
        lambda: trtllm.DecodingMode("TopK"),
        lambda: trtllm.DynamicBatchConfig(),
        lambda: trtllm.Executor("engine", "DECODER_ONLY", trtllm.ExecutorConfig()),
    ],
)
def test_what_pybind_has_no_overload_for_is_a_type_error(make: Any) -> None:
    with pytest.raises(TypeError):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: trtllm.SamplingConfig(top_p=0.0),
        lambda: trtllm.SamplingConfig(beam_width=0),
        lambda: trtllm.SamplingConfig(temperature=-1.0),
        lambda: trtllm.SamplingConfig(2, num_return_sequences=3),
        lambda: trtllm.Request([], max_tokens=3),
        lambda: trtllm.Request([1]),
    ],
)
def test_what_the_library_checks_is_a_runtime_error(make: Any) -> None:
    with pytest.raises(RuntimeError, match=r"\[TensorRT-LLM\]\[ERROR\]"):
        make()


def test_a_deprecated_name_works_and_warns(capfd: pytest.CaptureFixture[str]) -> None:
    assert trtllm.Request([1], max_new_tokens=3).max_tokens == 3
    assert "max_new_tokens is being deprecated" in capfd.readouterr().err


def test_properties_that_are_read_only_are(tmp_path: Path) -> None:
    with pytest.raises(AttributeError):
        trtllm.SchedulerConfig().capacity_scheduler_policy = None
    with pytest.raises(AttributeError):
        trtllm.KvCacheConfig().no_such_field = 1


def test_a_world_of_another_size_is_refused(tmp_path: Path) -> None:
    folder = write_engine(tmp_path, vocab_size=10, world_size=2)
    with pytest.raises(RuntimeError, match=r"worldSize is expected to be equal to tp\*pp\*cp"):
        trtllm.Executor(str(folder), trtllm.ModelType.DECODER_ONLY, trtllm.ExecutorConfig())


def test_to_wait_for_an_id_whose_last_response_was_taken_is_in_vain(tmp_path: Path) -> None:
    folder = write_engine(tmp_path, vocab_size=10)
    with trtllm.Executor(str(folder), trtllm.ModelType.DECODER_ONLY, trtllm.ExecutorConfig()) as executor:
        request_id = executor.enqueue_request(trtllm.Request([1, 2], max_tokens=2))
        responses = executor.await_responses(request_id, timedelta(seconds=30))
        assert responses[0].result.output_token_ids == [[1, 2, 1, 2]]
        with pytest.raises(RuntimeError):
            _ = responses[0].error_msg
        assert executor.await_responses(request_id, timedelta(milliseconds=20)) == []
        with pytest.raises(TypeError):
            executor.await_responses(timeout=1)
