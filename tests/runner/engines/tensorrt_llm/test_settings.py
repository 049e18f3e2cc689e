"""NVIDIA's parameters become the executor's configuration; a wrong one is told, never dropped."""

import re
from dataclasses import replace
from operator import attrgetter
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from engine.tensorrt_llm_config import CompiledConfig, read_compiled_config
from errors.engine_tar import EngineUnreadable
from errors.settings import InvalidSetting
from runner.engines.tensorrt_llm.settings import (
    executor_config,
    guided_decoding_config,
    is_chunked,
    parse_options,
)
from runner.triton_server.model_repository import TEMPLATES
from tests.runner.engines.tensorrt_llm.bindings import bindings
from tests.runner.paced_engine import make_tokenizer
from tests.runner.tensorrt_llm_engine import write_engine

trtllm = bindings()


@pytest.fixture
def compiled(tmp_path: Path) -> CompiledConfig:
    return read_compiled_config(write_engine(tmp_path / "engine", vocab_size=320))


def test_what_is_not_given_keeps_the_librarys_default(compiled: CompiledConfig) -> None:
    ours = executor_config(trtllm, parse_options({"gpt_model_type": "", "medusa_choices": ""}), compiled)
    default = trtllm.ExecutorConfig()
    for name in ("max_beam_width", "normalize_log_probs", "iter_stats_max_iterations", "max_queue_size"):
        assert getattr(ours, name) == getattr(default, name)
    assert ours.kv_cache_config.free_gpu_memory_fraction is None
    assert ours.decoding_config is None
    assert ours.parallel_config is None


KNOBS = "extended_runtime_perf_knob_config"
PARAMETERS: dict[str, tuple[str, str, object]] = {
    "gpt_model_type": ("V1", "batching_type", trtllm.BatchingType.STATIC),
    "batch_scheduler_policy": (
        "max_utilization",
        "scheduler_config.capacity_scheduler_policy",
        trtllm.CapacitySchedulerPolicy.MAX_UTILIZATION,
    ),
    "decoding_mode": ("top_k_top_p", "decoding_config.decoding_mode", trtllm.DecodingMode.TopKTopP()),
    "max_beam_width": ("2", "max_beam_width", 2),
    "max_batch_size": ("3", "max_batch_size", 3),
    "max_queue_size": ("9", "max_queue_size", 9),
    "max_tokens_in_paged_kv_cache": ("2560", "kv_cache_config.max_tokens", 2560),
    "max_attention_window_size": ("512, 256", "kv_cache_config.max_attention_window", [512, 256]),
    "sink_token_length": ("4", "kv_cache_config.sink_token_length", 4),
    "kv_cache_free_gpu_mem_fraction": ("0.95", "kv_cache_config.free_gpu_memory_fraction", 0.95),
    "cross_kv_cache_fraction": ("0.5", "kv_cache_config.cross_kv_cache_fraction", 0.5),
    "kv_cache_host_memory_bytes": ("1000000000", "kv_cache_config.host_cache_size", 10**9),
    "kv_cache_onboard_blocks": ("false", "kv_cache_config.onboard_blocks", False),
    "enable_kv_cache_reuse": ("true", "kv_cache_config.enable_block_reuse", True),
    "enable_chunked_context": ("0", "enable_chunked_context", False),
    "normalize_log_probs": ("False", "normalize_log_probs", False),
    "gpu_device_ids": ("3", "parallel_config.device_ids", [3]),
    "lora_cache_optimal_adapter_size": ("16", "peft_cache_config.optimal_adapter_size", 16),
    "lora_cache_max_adapter_size": ("32", "peft_cache_config.max_adapter_size", 32),
    "lora_cache_gpu_memory_fraction": ("0.1", "peft_cache_config.device_cache_percent", 0.1),
    "lora_cache_host_memory_bytes": ("5000", "peft_cache_config.host_cache_size", 5000),
    "medusa_choices": ("{0}, {0, 1}", "decoding_config.medusa_choices", [[0], [0, 1]]),
    "eagle_choices": ("{0, 0}, {1}", "decoding_config.eagle_config.eagle_choices", [[0, 0], [1]]),
    "gpu_weights_percent": ("0.5", "gpu_weights_percent", 0.5),
    "multi_block_mode": ("false", f"{KNOBS}.multi_block_mode", False),
    "enable_context_fmha_fp32_acc": ("true", f"{KNOBS}.enable_context_fmha_fp32_acc", True),
    "cuda_graph_mode": ("true", f"{KNOBS}.cuda_graph_mode", True),
    "cuda_graph_cache_size": ("7", f"{KNOBS}.cuda_graph_cache_size", 7),
    "iter_stats_max_iterations": ("10", "iter_stats_max_iterations", 10),
    "request_stats_max_iterations": ("11", "request_stats_max_iterations", 11),
    "speculative_decoding_fast_logits": ("true", "spec_dec_config.fast_logits", True),
}
"""A value, where NVIDIA's model puts it, and what it is there: by NVIDIA's name."""


def test_every_parameter_arrives_where_nvidias_model_puts_it(compiled: CompiledConfig) -> None:
    given = {name: value for name, (value, _, _) in PARAMETERS.items()}
    config = executor_config(trtllm, parse_options(given), compiled)
    for name, (_, place, expected) in PARAMETERS.items():
        assert attrgetter(place)(config) == expected, name
    assert config.parallel_config.communication_mode is trtllm.CommunicationMode.LEADER


def test_no_parameter_of_the_template_is_dropped() -> None:
    """Each is read here, by the slot or the worker, or refused: E1006 names it."""
    template = (TEMPLATES / "tensorrt_llm" / "config.pbtxt").read_text()
    names = re.findall(r'parameters \{ key: "(\w+)"', template)
    read_elsewhere = {"engine_kind", "engine_python", "engine_start_timeout_s", "gpt_model_path"}
    read_elsewhere |= {"exclude_input_in_output", "FORCE_CPU_ONLY_INPUT_TENSORS"}
    read_elsewhere |= {"cancellation_check_period_ms", "stats_check_period_ms", "engine_cache_dir"}
    for name in set(names) - read_elsewhere:
        with pytest.raises(InvalidSetting, match=name):
            parse_options({name: "?"})


@pytest.mark.parametrize("given", [True, False, None])
def test_chunked_context_is_always_told(compiled: CompiledConfig, given: bool | None) -> None:
    options = parse_options({} if given is None else {"enable_chunked_context": str(given)})
    without = replace(compiled, has_paged_context=False)
    assert is_chunked(options, compiled) == (given is not False)
    assert executor_config(trtllm, options, compiled).enable_chunked_context == (given is not False)
    if not given:
        assert executor_config(trtllm, options, without).enable_chunked_context is False


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("kv_cache_free_gpu_mem_fraction", "1.5", "from 0 to 1"),
        ("kv_cache_free_gpu_mem_fraction", "nan", "from 0 to 1"),
        ("enable_kv_cache_reuse", "yes", "true or false"),
        ("max_beam_width", "0", "at least 1"),
        ("max_beam_width", "3", "at most 2, the --max_beam_width"),
        ("gpu_device_ids", "0,x", "whole numbers"),
        ("gpu_device_ids", "0,1", "1 device ids"),
        ("medusa_choices", "0, 1", "like {0, 0}"),
        ("batch_scheduler_policy", "fair", "one of max_utilization, guaranteed_no_evict"),
        ("decoding_mode", "beam", "one of auto"),
        ("guided_decoding_backend", "lm-format-enforcer", "one of xgrammar"),
        ("participant_ids", "1", "left out"),
        ("device", "cpu", "left out"),
    ],
)
def test_a_wrong_value_is_e1006_naming_it(compiled: CompiledConfig, name: str, value: str, says: str) -> None:
    with pytest.raises(InvalidSetting, match=f"E1006 .*{name}.*{says}"):
        executor_config(trtllm, parse_options({name: value}), compiled)


@pytest.mark.parametrize("name", ["enable_kv_cache_reuse", "enable_chunked_context"])
def test_what_the_engine_was_not_built_for_is_told_with_the_flag(compiled: CompiledConfig, name: str) -> None:
    without = replace(compiled, has_paged_context=False)
    with pytest.raises(InvalidSetting, match="--use_paged_context_fmha enable"):
        executor_config(trtllm, parse_options({name: "true"}), without)


def test_how_long_a_prompt_may_be(compiled: CompiledConfig) -> None:
    assert compiled.prompt_limit(is_chunked=True) == 511
    assert replace(compiled, max_num_tokens=100).prompt_limit(is_chunked=False) == 100
    assert replace(compiled, max_num_tokens=100).prompt_limit(is_chunked=True) == 511
    assert replace(compiled, is_packed=False).prompt_limit(is_chunked=False) == 64


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"build_config": {}, "pretrained_config": []}'])
def test_a_config_that_is_not_an_engines_is_e1312(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    with pytest.raises(EngineUnreadable, match=r"E1312 .*config\.json"):
        read_compiled_config(tmp_path)


def test_guided_decoding_gets_the_tokenizer_with_a_place_for_each_id(tmp_path: Path) -> None:
    make_tokenizer().save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "config.json").write_text('{"eos_token_id": [7, 9]}')
    config = guided_decoding_config(trtllm, tmp_path)
    assert config.backend == trtllm.GuidedDecodingConfig.GuidedDecodingBackend.XGRAMMAR
    tokenizer = Tokenizer.from_str(config.tokenizer_str)
    assert {
        token: index for index, token in enumerate(config.encoded_vocab) if token
    } == tokenizer.get_vocab()
    assert config.stop_token_ids == [7]
