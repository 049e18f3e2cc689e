"""NVIDIA's C++ backend in the slot: what it is given, and that Triton comes to loading it.

The backend itself is a file that is no backend: Triton's complaint about it is the proof that it got there.
"""

import ctypes.util
import os
import re
import signal
from contextlib import closing
from pathlib import Path

import httpx
import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from engine.directory import Engine, load
from errors.settings import MissingRequirement
from errors.triton import StartFailed
from runner.settings.ports import free_ports
from runner.triton_server.install import CPP_LIBRARY
from runner.triton_server.model_repository import Rendered, render
from tests.runner.engines.tensorrt_llm.test_slot import pytestmark, server_config
from tests.runner.paced_engine import PacedModel
from tests.runner.running import QUESTION, answer
from tests.runner.servers import HOST, TritonUnderTest, triton_pids, wait_until
from tests.runner.tensorrt_llm_engine import make_compiled_model
from tests.standins.gpus import make_gpus
from tests.standins.nvidia_triton import NvidiaTriton

__all__ = ["pytestmark"]

INPUTS = {
    *("input_ids", "encoder_input_features", "encoder_output_lengths", "input_lengths", "request_output_len"),
    *("num_return_sequences", "draft_input_ids", "decoder_input_ids", "decoder_input_lengths"),
    *("draft_logits", "draft_acceptance_threshold", "end_id", "pad_id", "stop_words_list"),
    *("bad_words_list", "embedding_bias", "beam_width", "temperature", "runtime_top_k", "runtime_top_p"),
    *("runtime_top_p_min", "runtime_top_p_decay", "runtime_top_p_reset_ids", "len_penalty"),
    *("early_stopping", "repetition_penalty", "min_length", "beam_search_diversity_rate"),
    *("presence_penalty", "frequency_penalty", "random_seed", "return_log_probs"),
    *("return_context_logits", "return_generation_logits", "return_kv_cache_reuse_stats"),
    *("exclude_input_in_output", "stop", "streaming", "prompt_embedding_table"),
    *("prompt_table_extra_ids", "prompt_vocab_size", "cross_attention_mask", "lora_task_id"),
    *("lora_weights", "lora_config", "context_phase_params", "skip_cross_attn_blocks"),
}
OUTPUTS = {
    *("output_ids", "sequence_length", "cum_log_probs", "output_log_probs", "context_logits"),
    *("generation_logits", "batch_index", "sequence_index", "context_phase_params"),
    *("kv_cache_alloc_new_blocks", "kv_cache_reused_blocks", "kv_cache_alloc_total_blocks"),
}
"""The contract of NVIDIA's template, tag v0.16.0 of tensorrtllm_backend."""


@pytest.fixture
def backends(tmp_path: Path) -> Path:
    """Provide a folder of backends whose tensorrtllm is another library."""
    folder = tmp_path / "backends"
    (folder / "tensorrtllm").mkdir(parents=True)
    library = next(Path("/").glob(f"usr/lib/*/{ctypes.util.find_library('m')}"))
    (folder / "tensorrtllm" / CPP_LIBRARY).write_bytes(library.read_bytes())
    return folder


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> PacedModel:
    return make_compiled_model(tmp_path_factory.mktemp("compiled"))


def test_the_rendered_model_is_nvidias(compiled: PacedModel, backends: Path, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    rendered = render(
        load(compiled.directory),
        repository,
        overrides={"tensorrt_llm": {"kv_cache_free_gpu_mem_fraction": 0.5}},
        cpp_backend=backends / "tensorrtllm",
    )
    assert rendered.is_cpp
    text = (repository / "tensorrt_llm" / "config.pbtxt").read_text()
    config = text_format.Parse(text, model_config_pb2.ModelConfig())
    assert (config.backend, config.max_batch_size) == ("tensorrtllm", 4)
    assert config.model_transaction_policy.decoupled
    assert {each.name for each in config.input} == INPUTS
    assert {each.name for each in config.output} == OUTPUTS
    parameters = {key: value.string_value for key, value in config.parameters.items() if value.string_value}
    assert parameters == {
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        "exclude_input_in_output": "true",
        "executor_worker_path": str(backends / "tensorrtllm" / "trtllmExecutorWorker"),
        "gpt_model_path": str(compiled.directory),
        "gpt_model_type": "inflight_fused_batching",
        "kv_cache_free_gpu_mem_fraction": "0.5",
        "max_beam_width": "1",
    }
    assert not (repository / "tensorrt_llm" / "1" / "model.py").exists()
    assert "slot" not in text


@pytest.mark.parametrize("guides", [{}, {"guided_decoding_backend": "xgrammar"}])
def test_guides_are_passed_on_once_there_is_a_backend_for_them(
    compiled: PacedModel, backends: Path, tmp_path: Path, guides: dict[str, object]
) -> None:
    """Else Triton refuses them, where NVIDIA's backend would drop them."""
    overrides = {"tensorrt_llm": guides}
    engine, library = load(compiled.directory), backends / "tensorrtllm"
    render(engine, tmp_path, overrides=overrides, cpp_backend=library)
    for model in ("tensorrt_llm", "ensemble"):
        config = text_format.Parse(
            (tmp_path / model / "config.pbtxt").read_text(), model_config_pb2.ModelConfig()
        )
        taken = {each.name for each in config.input if each.name.startswith("guided_decoding")}
        assert taken == ({"guided_decoding_guide_type", "guided_decoding_guide"} if guides else set())


def test_an_engine_of_another_kind_keeps_the_slot(paced: PacedModel, backends: Path, tmp_path: Path) -> None:
    with closing(TritonUnderTest(paced, tmp_path, TRITONSERVER_BACKEND_DIR=str(backends))) as server:
        assert server.generate_ids([1, 2], 2).json()["output_ids"] == [1, 2]


def test_both_apis_ask_our_own_triton_and_go_on_after_it_was_killed(
    paced: PacedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NVIDIA's backend is stood in for by a Python model."""

    def render_nvidia(engine: Engine, target: Path, **options: object) -> Rendered:
        NvidiaTriton(tmp_path, repository=target).add_model()
        return Rendered(is_cpp=True, options={}, start_timeout_s=60.0, hang_timeout_s=60.0)

    monkeypatch.setattr("runner.stack.stack.render", render_nvidia)
    (openai_port,) = free_ports(1)
    server = TritonUnderTest(paced, tmp_path, OPENAI_PORT=str(openai_port))
    expected = paced.expected_text(QUESTION, 12)

    def ask_api() -> str:
        body = {"prompt": QUESTION, "max_tokens": 12, "temperature": 0.002}
        answer = httpx.post(f"http://{HOST}:{openai_port}/v1/completions", json=body, timeout=600)
        return str(answer.json()["choices"][0]["text"]) if answer.status_code == 200 else ""

    try:
        assert server.service.stack.engine is None
        assert (answer(server, temperature=0.002), ask_api()) == (expected, expected)
        pid = server.service.stack.triton.pid
        os.kill(pid, signal.SIGKILL)
        assert wait_until(ask_api) == expected
        assert answer(server, temperature=0.002) == expected
    finally:
        server.close()


@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.needs_mpirun)])
def test_triton_comes_to_loading_the_backend_in_each_rank(
    backends: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, world_size: int
) -> None:
    make_gpus(tmp_path / "bin", sm=90, count=2, memory_mib=81559)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    model = make_compiled_model(tmp_path / "model", world_size=world_size)
    (port,) = free_ports(1)
    with pytest.raises(StartFailed) as raised:
        TritonUnderTest(model, tmp_path, TRITONSERVER_BACKEND_DIR=str(backends), TRITON_HTTP_PORT=str(port))
    wait_until(lambda: triton_pids(port) == [])
    assert re.search(r"unable to find required entrypoint .*TRITONBACKEND_", str(raised.value))


def test_asked_for_by_hand_where_it_is_not_is_e1008(
    compiled: PacedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_gpus(tmp_path / "bin", sm=90, count=2, memory_mib=81559)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    config = server_config(tmp_path, triton_backend="tensorrtllm")
    with pytest.raises(MissingRequirement, match=r"E1008 .*libtriton_tensorrtllm\.so"):
        TritonUnderTest(compiled, tmp_path, COG_TRITON_CONFIG=config)
