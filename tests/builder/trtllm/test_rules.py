"""What can't be built is refused before anything is fetched, in words that name value and remedy."""

from typing import Any

import pytest

from builder.config.config import BuildConfig
from builder.trtllm.flags import argv
from builder.trtllm.rules import check, check_gpu
from builder.trtllm.sizing import fit
from builder.trtllm.summary import TrtllmBuild, summarize
from errors.build_config import (
    ConflictingBuildKeys,
    InvalidBuildValue,
    QuantizationUnsupported,
    SequenceTooLong,
    WorldSizeMismatch,
)
from errors.coded_error import CodedError

LLAMA_2 = {
    "model_type": "llama",
    "hidden_size": 5120,
    "intermediate_size": 13824,
    "vocab_size": 32000,
    "num_hidden_layers": 40,
    "num_attention_heads": 40,
    "max_position_embeddings": 4096,
}


def config(
    convert: dict[str, Any] | None = None,
    build: dict[str, Any] | None = None,
    quantize: dict[str, Any] | None = None,
    **keys: Any,
) -> BuildConfig:
    name, script = (
        ("quantize", "quantize.py") if quantize is not None else ("convert_to_ft", "convert_checkpoint.py")
    )
    step = {
        "script": script,
        "output_dir": "./c",
        "args": quantize if quantize is not None else convert or {},
    }
    lengths = {"fit_lengths": True} if keys.pop("fit_lengths", False) else {}
    built = {"executable": "trtllm-build", "output_dir": "./e", "args": build or {}, **lengths}
    return BuildConfig.model_validate(
        {"version": 1, "model_id": "a/b", "example_name": "llama", name: step, "build": built, **keys}
    )


def asked(**parts: Any) -> TrtllmBuild:
    return check(config(**parts))[0]


def test_a_plain_config_is_read_with_the_programs_own_defaults() -> None:
    build = asked(convert={"tp_size": 2, "pp_size": 3, "dtype": "float16"})
    assert (build.tp_size, build.pp_size, build.cp_size, build.world_size) == (2, 3, 1, 6)
    assert (build.dtype, build.quantization, build.kv_cache_quantization) == ("float16", None, None)
    value = build.build.value
    assert (value("max_batch_size"), value("max_input_len"), build.max_seq_len, value("max_num_tokens")) == (
        2048, 1024, None, 8192,
    )  # fmt: skip
    assert value("kv_cache_type") == "paged"
    assert build.checkpoint is build.calls[0]


def test_folders_that_a_config_leaves_out_are_filled_in_and_the_hubs_checkpoint_needs_no_conversion() -> None:
    convert, build = asked().calls
    assert argv(convert.args, convert.program) == ["--model_dir", "/src/models/a/b", "--output_dir", "./c"]
    assert argv(build.args, build.program) == ["--checkpoint_dir", "./c", "--output_dir", "./e"]
    built = {"executable": "trtllm-build", "output_dir": "e", "args": {"checkpoint_dir": "/src/models/a/b"}}
    plain = summarize(BuildConfig.model_validate({"version": 1, "model_id": "a/b", "build": built}))
    assert (plain.checkpoint, plain.dtype) == (None, "auto")


@pytest.mark.parametrize(
    ("parts", "quantization", "kv_cache"),
    [
        ({"convert": {"use_weight_only": None}}, "W8A16", None),
        ({"convert": {"use_weight_only": True, "weight_only_precision": "int4_gptq"}}, "W4A16_GPTQ", None),
        ({"convert": {"use_weight_only": False}}, None, None),
        ({"convert": {"smoothquant": 0.5}}, "W8A8_SQ_PER_TENSOR_PLUGIN", None),
        ({"convert": {"smoothquant": 0.5, "per_channel": None}},
         "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN", None),
        ({"convert": {"smoothquant": 0.5, "per_token": None}}, "W8A8_SQ_PER_TENSOR_PER_TOKEN_PLUGIN", None),
        ({"convert": {"smoothquant": "0.5", "per_channel": None, "per_token": None}},
         "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN", None),
        ({"convert": {"use_fp8_rowwise": None, "fp8_kv_cache": None}}, "FP8_PER_CHANNEL_PER_TOKEN", "FP8"),
        ({"convert": {"int8_kv_cache": None}}, None, "INT8"),
        ({"quantize": {"qformat": "int4_awq"}}, "W4A16_AWQ", None),
        ({"quantize": {"qformat": "fp8", "kv_cache_dtype": "fp8"}}, "FP8", "FP8"),
        ({"quantize": {"autoq_format": "int4_awq", "auto_quantize_bits": 5}}, "MIXED_PRECISION", None),
        ({"quantize": {}}, None, None),
    ],
)  # fmt: skip
def test_quantization_is_read_as_the_scripts_read_it(
    parts: dict[str, Any], quantization: str | None, kv_cache: str | None
) -> None:
    build = asked(**parts)
    assert (build.quantization, build.kv_cache_quantization) == (quantization, kv_cache)


REFUSED: dict[type[CodedError], list[tuple[dict[str, Any], str]]] = {
    WorldSizeMismatch: [
        ({"convert": {"tp_size": 2, "pp_size": 2}, "target": {"gpus": 2}},
         "gpus is 2, but convert_to_ft makes a checkpoint for 4 (tp_size 2 x pp_size 2 x cp_size 1)"),
        ({"convert": {"tp_size": 2}, "build": {"auto_parallel": 2}}, "auto_parallel is 2"),
        ({"convert": {"tp_size": 4, "moe_tp_size": 2, "moe_ep_size": 4}}, "2 x moe_ep_size 4 is 8"),
    ],
    InvalidBuildValue: [
        ({"convert": {"calib_size": 0}}, "convert_to_ft.args.calib_size must be at least 1"),
    ],
    ConflictingBuildKeys: [
        ({"convert": {"use_weight_only": None, "smoothquant": 0.5}}, "quantizes twice"),
        ({"convert": {"int8_kv_cache": None, "fp8_kv_cache": None}}, "int8 and an fp8 KV"),
        ({"quantize": {"qformat": "int4_awq", "batch_size": 48}},
         "batches of 48 (quantize.args.batch_size), but with 32 samples; give a batch_size of at most 32"),
        ({"quantize": {"qformat": "fp8", "batch_size": 8, "calib_size": 4}}, "larger calib_size"),
        ({"quantize": {"autoq_format": "fp8"}}, "without auto_quantize_bits"),
        ({"build": {"use_paged_context_fmha": "enable", "kv_cache_type": "continuous"}},
         "use_paged_context_fmha enable, which needs kv_cache_type paged, not continuous; set"),
        ({"build": {"use_paged_context_fmha": "enable", "context_fmha": "disable"}}, "fmha"),
        ({"build": {"use_fp8_context_fmha": "enable"}}, "quantize to fp8"),
        ({"build": {"gpt_attention_plugin": "disable"}}, "that plugin's"),
        ({"build": {"user_buffer": "enable"}}, "reduce_fusion"),
        ({"build": {"lora_dir": "x"}}, "lora_plugin is disable"),
        ({"build": {"max_input_len": 9, "max_seq_len": 8}}, "counts prompt and output"),
        ({"build": {"checkpoint_dir": "./other"}}, "read ./other, but ./c is made"),
        ({"build": {"output_dir": "./other"}}, "give both the same folder"),
    ],
    QuantizationUnsupported: [
        ({"quantize": {"qformat": "nvfp4"}}, "needs a Blackwell GPU (SM 100 or newer)"),
        ({"target": {"sm": 100}}, "needs a later TensorRT-LLM"),
        ({"target": {"sm": 75}}, "needs an earlier TensorRT-LLM"),
        ({"quantize": {"qformat": "fp8"}, "target": {"sm": 86}},
         "FP8 needs an Ada or Hopper (SM 89 or newer) GPU, but the engine is for SM 86; quantize"),
        ({"quantize": {"qformat": "w4a8_awq"}, "target": {"sm": 80}}, "W4A8_AWQ needs"),
        ({"convert": {"fp8_kv_cache": None}, "target": {"sm": 80}}, "KV cache"),
        ({"build": {"gemm_plugin": "fp8"}, "target": {"sm": 80}}, "build.args.gemm_plugin"),
        ({"build": {"gemm_swiglu_plugin": "fp8"}, "target": {"sm": 89}}, "Hopper (SM 90)"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("error", REFUSED)
def test_what_contradicts_itself_is_refused(error: type[CodedError]) -> None:
    for parts, words in REFUSED[error]:
        with pytest.raises(error) as caught:
            check(config(**parts))
        assert words in str(caught.value), parts


@pytest.mark.parametrize(
    "parts",
    [
        {"quantize": {"qformat": "int4_awq", "batch_size": 12}},
        {"quantize": {"qformat": "full_prec", "batch_size": 999}},
        {"quantize": {"qformat": "fp8"}, "target": {"sm": 89}, "build": {"use_fp8_context_fmha": "enable"}},
        {"convert": {"tp_size": 4}, "target": {"gpus": 4, "sm": 80}},
        {"build": {"use_paged_context_fmha": "enable", "kv_cache_type": "paged"}},
        {"build": {"checkpoint_dir": "/src/c", "output_dir": "/src/e/"}},
        {"build": {"auto_parallel": 2}, "target": {"gpus": 2}},
    ],
)
def test_what_fits_together_is_taken(parts: dict[str, Any]) -> None:
    assert check(config(**parts))[1] == []


def test_what_a_reader_should_know_is_noted() -> None:
    (note,) = check(config(build={"max_input_len": 9000}))[1]
    assert "max_num_tokens 8192 is less than max_input_len 9000" in note
    assert check(config(build={"max_input_len": 9000, "use_paged_context_fmha": "enable"}))[1] == []
    (note,) = check(config(build={"kv_cache_type": "continuous"}))[1]
    assert "can't be batched in flight" in note


def test_the_gpu_of_a_machine_is_judged_like_a_target() -> None:
    build = asked(quantize={"qformat": "fp8"})
    check_gpu(build, 90)
    with pytest.raises(QuantizationUnsupported):
        check_gpu(build, 80)


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ({"convert_to_ft": {"script": "convert_checkpoint.py", "output_dir": "c"}}, "has no build"),
        ({"build": {"script": "convert_checkpoint.py", "output_dir": "c"}}, "convert_checkpoint.py as build"),
        ({"build": {"executable": "trtllm-build", "output_dir": "e"}}, "no checkpoint"),
    ],
)
def test_programs_that_are_missing_or_in_wrong_places_are_refused(step: dict[str, Any], told: str) -> None:
    with pytest.raises(ConflictingBuildKeys, match=told):
        summarize(BuildConfig.model_validate({"version": 1, "model_id": "a/b", **step}))


def test_lengths_beyond_the_models_positions_are_refused_or_cut() -> None:
    with pytest.raises(SequenceTooLong) as caught:
        fit(asked(build={"max_seq_len": 8192}), LLAMA_2)
    assert "max_seq_len is 8192, but the model has 4096 positions" in str(caught.value)
    assert "fit_lengths" in str(caught.value)
    build, notes = fit(asked(build={"max_seq_len": 8192, "max_input_len": 5000}, fit_lengths=True), LLAMA_2)
    assert (build.max_seq_len, build.build.value("max_input_len")) == (4096, 4096)
    assert "--max_seq_len 4096" in " ".join(argv(build.build.args, build.build.program))
    assert notes == [
        "build.args.max_seq_len: 8192 reduced to 4096, the model's max_position_embeddings",
        "build.args.max_input_len: 5000 reduced to 4096, the model's max_position_embeddings",
    ]


def test_lengths_within_the_model_stay_and_one_not_given_is_the_models() -> None:
    build, notes = fit(asked(build={"max_seq_len": 4096}), LLAMA_2)
    assert (build.max_seq_len, notes) == (4096, [])
    assert fit(asked(), LLAMA_2)[0].max_seq_len == 4096
    assert fit(asked(), {})[0].max_seq_len is None


def _model(heads: int, key_value_heads: int) -> dict[str, Any]:
    return {**LLAMA_2, "num_attention_heads": heads, "num_key_value_heads": key_value_heads}


def test_a_model_that_does_not_divide_is_refused_but_few_key_value_heads_are_repeated() -> None:
    fit(asked(convert={"tp_size": 8}), _model(64, 1))
    for convert, model, words in (
        ({"tp_size": 3}, LLAMA_2, "splits 40 attention heads over tp_size 3"),
        ({"tp_size": 4}, _model(12, 6), "6 key/value heads over tp_size 4"),
        ({"pp_size": 41}, LLAMA_2, "splits 40 layers over pp_size 41"),
    ):
        with pytest.raises(ConflictingBuildKeys) as caught:
            fit(asked(convert=convert), model)
        assert words in str(caught.value)
