"""TensorRT-LLM's PyTorch backend: arguments checked against NVIDIA's list, weights packed as they are."""

import json
from pathlib import Path
from typing import Any

import pytest

from builder.config.config import BuildConfig
from builder.config.llm_arguments import TABLE
from builder.kinds import engine_plan
from builder.plan import plan_lines
from errors.coded_error import CodedError
from tests.builder.unpacked_builds import built, example_model, write_config

KEYS = {"engine": "tensorrt_llm", "backend": "pytorch"}
SIGNATURES = Path(__file__).parents[1] / "standins" / "llm_api" / "signatures.json"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"max_batchsize": 8}, "of TensorRT-LLM 1.3.0rc7's engine arguments; did you mean max_batch_size?"),
        ({"tensor_paralel_size": 2}, "did you mean tensor_parallel_size?"),
        ({"max_num_tokens": 0}, "llm_args.max_num_tokens must be at least 1, but is 0"),
        ({"tensor_parallel_size": "2"}, "llm_args.tensor_parallel_size must be a whole number, but is '2'"),
        ({"dtype": "fp16"}, "llm_args.dtype must be one of"),
        ({"guided_decoding_backend": "outlines"}, "one of ['xgrammar', 'llguidance']"),
        ({"kv_cache_config": 3}, "must be a mapping"),
        ({"kv_cache_config": {"free_gpu_mem_fraction": 0.5}}, "did you mean free_gpu_memory_fraction?"),
        ({"scheduler_config": {"nonsense": 1}}, "its keys are capacity_scheduler_policy, "),
        ({"model": "x"}, "E1204 ConflictingBuildKeys: The build config gives llm_args.model; leave it out"),
        ({"backend": "pytorch"}, "the build config has a key of this name"),
        ({"telemetry_config": {"disabled": False}}, "no usage is reported"),
        ({"checkpoint_loader": {}}, "it names code"),
        ({"stream_interval": 10}, "every token is streamed"),
        ({"max_beam_width": 4}, "no request asks for a beam search"),
        ({"kv_cache_dtype": "fp8"}, "write kv_cache_config: {dtype: ...}"),
        ({"tp_size": 2}, "write tensor_parallel_size."),
        ({"use_cuda_graph": True}, "write cuda_graph_config: {...}"),
        ({"pytorch_backend_config": {}}, "write what it has in llm_args itself"),
        ({"build_config": {}}, "it belongs to the compiled engines"),
        ({"lora_config": {"lora_dir": ["/x"]}}, "name the adapters under lora instead"),
    ],
)  # fmt: skip
def test_a_wrong_argument_or_one_that_nothing_can_honour_is_told(given: dict[str, Any], told: str) -> None:
    config = BuildConfig(engine="tensorrt_llm", backend="pytorch", model_id="a/b", llm_args=given)
    with pytest.raises(CodedError) as caught:
        engine_plan(config)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        # As in NVIDIA's guides of 1.0 to 1.2.
        {
            "cuda_graph_config": {"enable_padding": True, "batch_sizes": [1, 2, 4, 8]},
            "kv_cache_config": {
                "free_gpu_memory_fraction": 0.8,
                "enable_block_reuse": False,
                "dtype": "auto",
            },
            "enable_attention_dp": True,
            "moe_config": {"backend": "CUTLASS"},
            "speculative_config": {"decoding_type": "MTP", "num_nextn_predict_layers": 3},
            "print_iter_log": True,
        },
        {
            "attn_backend": "FLASHINFER",
            "disable_overlap_scheduler": True,
            "scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"},
            "lora_config": {"lora_target_modules": ["attn_q"], "max_lora_rank": 8, "max_loras": 4},
            "sampler_type": "TorchSampler",
            "batch_wait_timeout_ms": 5,
            "max_num_tokens": None,
        },
    ],
)
def test_published_arguments_are_taken_as_they_are(given: dict[str, Any]) -> None:
    config = BuildConfig(engine="tensorrt_llm", backend="pytorch", model_id="a/b", llm_args=given)
    engine_plan(config)
    assert TABLE.read(config) == given


def test_the_table_has_all_published_arguments() -> None:
    published = json.loads(SIGNATURES.read_text())["LLM"]
    known = TABLE.data["arguments"]
    assert published.keys() == {name for name, each in known.items() if "since" not in each}
    assert (TABLE.decided.keys() | TABLE.without_effect.keys()) <= known.keys()
    assert not TABLE.gone.keys() & known.keys()


@pytest.mark.parametrize(
    ("keys", "kind"),
    [
        ({"engine": "tensorrt_llm", "backend": "pytorch"}, "tensorrt_llm_pytorch"),
        ({"backend": "pytorch"}, "tensorrt_llm_pytorch"),
        ({"engine": "tensorrt_llm_pytorch"}, "tensorrt_llm_pytorch"),
        ({"engine": "tensorrt_llm"}, "tensorrt_llm"),
        ({"engine": "tensorrt_llm", "backend": "tensorrt"}, "tensorrt_llm"),
    ],
)
def test_the_backend_chooses_the_kind(keys: dict[str, Any], kind: str) -> None:
    assert BuildConfig(model_id="a/b", **keys).engine_kind == kind


@pytest.mark.parametrize(
    ("keys", "told"),
    [
        (
            {"engine": "tensorrt_llm", "llm_args": {"max_num_tokens": 5}},
            "gives llm_args, which engine tensorrt_llm does not use; leave it out, or write backend: pytorch",
        ),
        (
            {"backend": "pytorch", "build": {"output_dir": "./x"}, "target": {"sm": 90}},
            "which engine tensorrt_llm_pytorch does not use; leave it out, or write backend: tensorrt",
        ),
        ({"backend": "pytorch", "vllm": {}}, "does not use; leave it out or choose another engine"),
        ({"engine": "vllm", "backend": "pytorch"}, "gives backend pytorch, which engine vllm does not have"),
        ({"engine": "tensorrt_llm_pytorch", "backend": "tensorrt"}, "gives backend tensorrt, which engine"),
    ],
)
def test_keys_of_the_other_backend_are_refused(keys: dict[str, Any], told: str) -> None:
    with pytest.raises(CodedError) as caught:
        engine_plan(BuildConfig(model_id="a/b", **keys))
    assert told in str(caught.value)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return example_model(tmp_path)


def test_an_engine_is_weights_arguments_and_a_tokenizer_for_any_gpu(model: Path, tmp_path: Path) -> None:
    given = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "kv_cache_config": {"dtype": "fp8"}}
    manifest, engine = built(tmp_path, {**KEYS, "llm_args": given, "dtype": "bfloat16", "max_batch_size": 8})
    assert json.loads((engine / "llm_args.json").read_text()) == {
        **given,
        "dtype": "bfloat16",
        "enable_chunked_prefill": True,
        "max_batch_size": 8,
        "max_seq_len": 1024,
    }
    assert (manifest.engine_kind, manifest.world_size, manifest.sm) == ("tensorrt_llm_pytorch", 4, None)
    assert (manifest.max_seq_len, manifest.max_batch_size, manifest.dtype) == (1024, 8, "bfloat16")
    assert (manifest.library.name, manifest.library.version) == ("tensorrt_llm", "1.3.0rc7")
    assert (engine / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert (engine / "tokenizer.json").is_file()


def make_adapter(folder: Path, rank: int, modules: list[str]) -> None:
    folder.mkdir()
    config = {"r": rank, "peft_type": "LORA", "target_modules": modules}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    (folder / "adapter_model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")


def test_adapters_are_packed_and_the_library_gets_room_for_them(model: Path, tmp_path: Path) -> None:
    make_adapter(tmp_path / "one", 8, ["q_proj", "v_proj"])
    make_adapter(tmp_path / "two", 24, ["v_proj", "down_proj"])
    lora = {"french": {"model_path": "one"}, "pirate": {"model_path": "two"}}
    _, engine = built(tmp_path, {**KEYS, "lora": lora, "llm_args": {"lora_config": {"max_cpu_loras": 8}}})
    assert json.loads((engine / "llm_args.json").read_text())["lora_config"] == {
        "lora_target_modules": ["attn_q", "attn_v", "mlp_4h_to_h"],
        "max_lora_rank": 24,
        "max_loras": 2,
        "max_cpu_loras": 8,
    }
    make_adapter(tmp_path / "three", 8, ["embed_tokens"])
    with pytest.raises(CodedError, match=r"E1210.*changes embed_tokens"):
        built(tmp_path, {**KEYS, "lora": {"wide": {"model_path": "three"}}})


def test_the_plan_tells_weights_and_kv_cache_and_compiles_nothing(model: Path, tmp_path: Path) -> None:
    text = "\n".join(plan_lines(write_config(tmp_path, {**KEYS, "llm_args": {"max_num_tokens": 4096}})))
    assert (
        "llm_args.json for TensorRT-LLM 1.3.0rc7 (enable_chunked_prefill=True, max_num_tokens=4096)" in text
    )
    assert "GPUs (llm_args)" in text
    assert "KV cache" in text
    assert "trtllm-build" not in text
