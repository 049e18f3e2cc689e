"""Arguments of the LLM API: the engine's own, and the server configuration's, which override them."""

import json
from pathlib import Path
from typing import Any

import pytest

from errors.engines import EngineStartFailed
from errors.settings import InvalidSetting
from runner.engines.tensorrt_llm_pytorch.arguments import model_sizes, read_arguments
from tests.runner.engines.tensorrt_llm_pytorch.llm_api_engines import make_directory


def test_options_override_the_engine_by_nvidias_names(tmp_path: Path) -> None:
    own = {"max_batch_size": 8, "kv_cache_config": {"dtype": "fp8", "max_tokens": 5}, "max_num_tokens": 99}
    directory = make_directory(tmp_path / "engine", **own)
    options = {
        "max_batch_size": "16",
        "max_tokens_in_paged_kv_cache": "1000",
        "kv_cache_free_gpu_mem_fraction": "0.5",
        "batch_scheduler_policy": "max_utilization",
        "guided_decoding_backend": "XGrammar",
        "engine_cache_dir": "/cache",
        "enable_kv_cache_reuse": "",
        "gpt_model_type": "inflight_fused_batching",
        "max_beam_width": "1",
    }
    assert read_arguments(directory, options) == {
        "model": str(directory),
        "max_batch_size": 16,
        "max_num_tokens": 99,
        "kv_cache_config": {"dtype": "fp8", "max_tokens": 1000, "free_gpu_memory_fraction": 0.5},
        "scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"},
        "guided_decoding_backend": "xgrammar",
        "skip_tokenizer_init": False,
        "enable_iter_perf_stats": True,
    }


@pytest.mark.parametrize(
    "options",
    [
        {"decoding_mode": "medusa"},
        {"max_beam_width": "2"},
        {"kv_cache_free_gpu_mem_fraction": "0"},
        {"scheduling_policy": "lifo"},
    ],
)
def test_an_option_that_it_does_not_have_or_a_wrong_value_is_refused(
    tmp_path: Path, options: dict[str, str]
) -> None:
    with pytest.raises(InvalidSetting, match=next(iter(options))):
        read_arguments(make_directory(tmp_path / "engine"), options)


@pytest.mark.parametrize(
    ("config", "arguments", "sizes"),
    [
        ({"vocab_size": 9, "max_position_embeddings": 7}, {}, (9, 7)),
        ({"text_config": {"vocab_size": 9, "max_position_embeddings": 7}}, {"max_seq_len": 5}, (9, 5)),
        ({"vocab_size": 9}, {}, None),
        ({"max_position_embeddings": 7}, {}, None),
    ],
)
def test_sizes_are_the_models(
    tmp_path: Path, config: dict[str, Any], arguments: dict[str, Any], sizes: tuple[int, int] | None
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    if sizes is not None:
        assert model_sizes(tmp_path, arguments) == sizes
        return
    with pytest.raises(EngineStartFailed):
        model_sizes(tmp_path, arguments)


@pytest.mark.parametrize("text", ["{", "[]"])
def test_damaged_arguments_are_told(tmp_path: Path, text: str) -> None:
    (tmp_path / "llm_args.json").write_text(text)
    with pytest.raises(EngineStartFailed, match=r"llm_args\.json"):
        read_arguments(tmp_path, {})
