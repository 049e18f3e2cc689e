"""The vllm kind: arguments checked against vLLM's own list, weights and adapters packed as they are."""

import json
import shutil
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from builder.build import OWN_FOLDER, build
from builder.config.config import BuildConfig
from builder.config.file import ConfigFile, read_config
from builder.config.vllm_arguments import TABLE
from builder.kinds import engine_plan
from builder.kinds.vllm import Plan
from errors.build_config import ConflictingBuildKeys, InvalidBuildValue
from errors.coded_error import CodedError
from tests.builder.hub_server import HubServer, Repository
from tests.builder.unpacked_builds import built, example_model

KEYS = {"engine": "vllm"}


def arguments(**given: Any) -> dict[str, Any]:
    return TABLE.read(BuildConfig(engine="vllm", model_id="a/b", vllm=given))


def refusal(**given: Any) -> str:
    with pytest.raises(CodedError) as caught:
        arguments(**given)
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"max_num_seq": 8}, f"a key of vLLM {TABLE.version}'s engine arguments; did you mean max_num_seqs?"),
        ({"tensor_paralel_size": 2}, "did you mean tensor_parallel_size?"),
        ({"worker_use_ray": True}, "write distributed_executor_backend: ray"),
        ({"gpu_memory_utilization": 1.5}, "vllm.gpu_memory_utilization must be at most 1, but is 1.5"),
        ({"gpu_memory_utilization": 0}, "must be above 0, but is 0"),
        ({"gpu_memory_utilization": float("nan")}, "must be a finite number"),
        ({"max_num_seqs": 10**400}, "must be a finite number of at most 64 bits"),
        ({"tensor_parallel_size": 0}, "must be at least 1, but is 0"),
        ({"tensor_parallel_size": "4"}, "vllm.tensor_parallel_size must be a whole number, but is '4'"),
        ({"tensor_parallel_size": True}, "must be a whole number, but is True"),
        ({"tensor_parallel_size": 2.0}, "must be a whole number, but is 2.0"),
        ({"enforce_eager": 1}, "must be true or false, but is 1"),
        ({"dtype": "fp16"}, "vllm.dtype must be"),
        ({"quantization": "awqq"}, "vllm.quantization must be awq"),
        ({"compilation_config": 3}, "must be a mapping, but is 3"),
        ({"model": "x"}, "E1204 ConflictingBuildKeys: The build config gives vllm.model; leave it out"),
        ({"hf_token": "hf_secret"}, "hf_token of the build config, which is kept secret"),
        ({"data_parallel_rank": 1}, "run one runner on each machine"),
        ({"data_parallel_size": 0}, "at least 1"),
        ({"stream_interval": 10}, "every token is streamed"),
        ({"otlp_traces_endpoint": "http://c:4317"}, "OTEL_EXPORTER_OTLP_ENDPOINT"),
        ({"weight_transfer_config": {"backend": "nccl"}}, "nothing sends it other weights"),
        ({"model_class_overrides": {}}, "it names code"),
        ({"max_num_queued_reqs": 9}, "MAX_QUEUE_MS of the runner"),
        ({"max_num_partial_prefills": 2}, "long_prefill_token_threshold limits"),
        ({"enable_auto_tool_choice": True}, "found by the model's family"),
        ({"lora_modules": []}, "name the adapters under the key lora"),
        ({"speculative_model": "a/b"}, "write speculative_config"),
        ({"rope_scaling": {}}, "write hf_overrides"),
        ({"num_scheduler_steps": 8}, "this vLLM has nothing like it"),
        ({"attention_backend": "flash"}, "vllm.attention_backend must be"),
        ({"quantization": "compressed_tensors"}, "vllm.quantization must be"),
        ({"quantization": "auto-awq"}, "vllm.quantization must be"),
        ({"attention_backend": "flash-attn"}, "vllm.attention_backend must be"),
        ({"kv_cache_dtype": "FP8"}, "vllm.kv_cache_dtype must be"),
        ({"load_format": "pickle"}, "vllm.load_format must be"),
        ({"lora_dtype": "fp8"}, "vllm.lora_dtype must be one of"),
        ({"spec_method": "medusa"}, "vllm.spec_method must be"),
        ({"speculative_config": {"num_spec_tokens": 3}}, "did you mean num_speculative_tokens?"),
        ({"speculative_config": {"num_speculative_tokens": 0}}, "num_speculative_tokens must be above 0"),
        ({"speculative_config": {"target_model_config": {}}}, "is not a key of vllm.speculative_config"),
        ({"structured_outputs_config": {"backend": "xgramar"}}, "structured_outputs_config.backend must"),
        ({"compilation_config": {"level": 3}}, "level is not a key of vllm.compilation_config"),
        ({"compilation_config": {"cudagraph_mode": "FULLL"}}, "config.cudagraph_mode must be"),
        ({"quantization_config": {"lineer": {}}}, "did you mean linear?"),
        ({"kv_transfer_config": {"kv_role": "both"}}, "vllm.kv_transfer_config.kv_role must be one of"),
    ],
)  # fmt: skip
def test_a_wrong_argument_or_one_that_nothing_can_honour_is_told(given: dict[str, Any], told: str) -> None:
    text = refusal(**given)
    assert told in text
    assert "hf_secret" not in text


def test_right_arguments_stay_as_they_are_and_what_is_off_needs_nothing_that_honours_it() -> None:
    given = {
        "gpu_memory_utilization": 0.85,
        "tensor_parallel_size": 4,
        "dtype": "float16",
        "quantization": "gptq_marlin"
        if "gptq_marlin" in TABLE.data["arguments"]["quantization"]["choices"]
        else "gptq",
        "enforce_eager": False,
        "max_model_len": -1,
        "distributed_executor_backend": "ray",
        "compilation_config": {"cudagraph_capture_sizes": [1, 2, 4]},
        "speculative_config": None,
        "enable_sleep_mode": True,
        "enable_lora": True,
        "enable_return_routed_experts": False,
        "scheduling_policy": "fcfs",
    }
    assert arguments(**given) == given


@pytest.mark.parametrize(
    "given",
    [
        {"attention_backend": "auto"},
        {"attention_backend": "flashinfer"},
        {"moe_backend": "flashinfer-trtllm"},
        {"mamba_backend": "triton"},
        {"quantization": "FP8"},
        {"quantization": "online", "quantization_config": {"linear": {"weight": "mxfp8"}}},
        {"quantization_config": None},
        {"compilation_config": {"mode": 3, "cudagraph_mode": "full_and_piecewise"}},
    ],
)
def test_what_vllm_itself_reads_is_taken_in_its_own_writing(given: dict[str, Any]) -> None:
    assert arguments(**given) == given


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"max_num_seqs": 256, "max_num_batched_tokens": 64}, "max_num_seqs may be at most max_num_b"),
        ({"enable_lora": True, "max_loras": 4, "max_cpu_loras": 2}, "max_loras may be at most max_cpu_loras"),
        ({"max_model_len": 512, "long_prefill_token_threshold": 600}, "may be at most max_model_len"),
        (
            {"max_model_len": 512, "enable_chunked_prefill": False, "max_num_batched_tokens": 256},
            "max_model_len may be at most max_num_batched_tokens",
        ),
        ({"max_model_len": 0}, "vllm.max_model_len must be at least 1, or -1 for what fits, but is 0"),
        ({"decode_context_parallel_size": 2}, "must be a divisor of 1, the number of tensor-parallel ranks"),
        ({"distributed_executor_backend": "rey"}, "must be one of ray, mp, uni, "),
        ({"attention_backend": "FLASHINFER", "attention_config": {"backend": "FLASHINFER"}}, "are the same"),
        ({"speculative_config": {}}, "gives no vllm.speculative_config.model, and no method that needs none"),
        ({"speculative_config": {"method": "ngram"}}, "gives no vllm.speculative_config.num_spec"),
        ({"speculative_config": {"method": "eagle3", "num-speculative-tokens": 2}}, "with the method eagle3"),
        ({"spec_method": "draft_model", "spec_tokens": 2}, "model with the method draft_model; add it"),
        ({"structured_outputs_config": {"disable_any_whitespace": True}}, "backend xgrammar or guidance too"),
        ({"kv_transfer_config": {"kv_connector": "NixlConnector"}}, "give vllm.kv_transfer_config.kv_role"),
    ],
)  # fmt: skip
def test_what_is_wrong_together_is_told_before_vllm_starts(given: dict[str, Any], told: str) -> None:
    with pytest.raises(CodedError) as caught:
        engine_plan(BuildConfig(engine="vllm", model_id="a/b", vllm=given))
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "given",
    [
        {"tensor_parallel_size": 1, "prefill_context_parallel_size": 2, "decode_context_parallel_size": 2},
        {"max_model_len": -1, "long_prefill_token_threshold": 600},
        {"max_model_len": 512, "max_num_batched_tokens": 256},
        {"load_format": "SafeTensors"},
        {"compilation_config": {"cudagraph_mode": 2}},
    ],
)
def test_arguments_that_vllm_takes_together_are_taken(given: dict[str, Any]) -> None:
    engine_plan(BuildConfig(engine="vllm", model_id="a/b", vllm=given))


@pytest.mark.parametrize(
    ("told", "is_taken"),
    [
        ({"rope_scaling": {"type": "linear", "factor": 4.0}}, True),
        ({"rope_parameters": {"rope_type": "dynamic", "factor": 4.0}}, True),
        ({"model_max_length": 4096}, True),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 4.0}}, False),
        ({"rope_scaling": None}, False),
    ],
)
def test_a_length_that_vllm_derives_from_more_than_the_positions_is_taken(
    told: dict[str, Any], is_taken: bool
) -> None:
    plan = engine_plan(BuildConfig(engine="vllm", model_id="a/b", vllm={"max_model_len": 4096}))
    with nullcontext() if is_taken else pytest.raises(InvalidBuildValue, match="at most 1024"):
        plan.check_values({"max_position_embeddings": 1024, **told})


def test_the_models_own_numbers_exclude_nothing_once_they_are_overridden() -> None:
    given = {"hf_overrides": {"num_attention_heads": 6}, "tensor_parallel_size": 3, "max_model_len": 4096}
    plan = engine_plan(BuildConfig(engine="vllm", model_id="a/b", vllm=given))
    plan.check_values({"num_attention_heads": 4, "hidden_size": 8, "max_position_embeddings": 1024})


@pytest.mark.parametrize(
    "given",
    [
        {"method": "mtp", "num_speculative_tokens": 1},
        {"method": "suffix"},
        {"method": "ngram", "num-speculative-tokens": 3, "prompt_lookup_max": 4},
        {"model": "/draft", "num_speculative_tokens": 2, "attention_backend": "flash_attn"},
        {"method": "eagle3", "model": "/draft"},
        {"method": "draft_model", "model": "/draft-with-n_predict"},
        None,
    ],
)
def test_speculation_that_vllm_takes_is_taken(given: dict[str, Any] | None) -> None:
    engine_plan(BuildConfig(engine="vllm", model_id="a/b", vllm={"speculative_config": given}))


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"max_model_len": 4096}, "must be at most 1024"),
        ({"tensor_parallel_size": 3}, "must be a divisor of 4, the number of attention heads, but is 3"),
        ({"enable_expert_parallel": True}, "a llama model has no experts; leave it out"),
    ],
)
def test_what_the_model_excludes_is_told_before_its_weights_are_downloaded(
    given: dict[str, Any], told: str, tmp_path: Path, hub: HubServer
) -> None:
    files = {each.name: each.read_bytes() for each in example_model(tmp_path).iterdir()}
    hub.repositories["a/b"] = Repository(files)
    config = BuildConfig(engine="vllm", model_id="a/b", vllm=given)
    with pytest.raises(CodedError) as caught:
        build(ConfigFile(config, None, None, ()), tmp_path / "engine.tar", report=lambda line: None)
    assert told in str(caught.value)
    assert hub.asked_for("config.json")
    assert not hub.asked_for("model.safetensors")


def test_every_argument_has_a_type() -> None:
    assert all(described["types"] for described in TABLE.data["arguments"].values())


def test_every_argument_that_is_refused_is_one_of_vllms() -> None:
    known = TABLE.data["arguments"].keys()
    assert TABLE.decided.keys() | TABLE.without_effect.keys() <= known
    assert not TABLE.without_effect.keys() & TABLE.decided.keys()
    assert not TABLE.gone.keys() & known


def test_keys_that_every_kind_has_are_vllms_arguments_too_and_said_twice_must_be_the_same() -> None:
    config = BuildConfig(engine="vllm", model_id="a/b", dtype="bfloat16", max_seq_len=512, max_batch_size=8)
    assert TABLE.read(config) == {"dtype": "bfloat16", "max_model_len": 512, "max_num_seqs": 8}
    config = BuildConfig(engine="vllm", model_id="a/b", max_batch_size=8, vllm={"max_num_seqs": 9})
    with pytest.raises(CodedError, match=r"E1204.*max_batch_size 8 and vllm.max_num_seqs 9"):
        TABLE.read(config)


@pytest.mark.parametrize("name", sorted(path.name for path in (OWN_FOLDER / "examples").glob("vllm-*")))
def test_the_examples_plan(name: str) -> None:
    steps = engine_plan(read_config(OWN_FOLDER / "examples" / name / "config.yaml").config).steps()
    assert any(step.title.startswith(f"engine_args.json for vLLM {TABLE.version} (") for step in steps)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return example_model(tmp_path)


def test_an_engine_is_weights_arguments_and_a_tokenizer(model: Path, tmp_path: Path) -> None:
    given = {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "max_num_seqs": 8, "max_model_len": 512}
    given["prefill_context_parallel_size"] = 2
    manifest, engine = built(tmp_path, {**KEYS, "vllm": given, "dtype": "bfloat16"})
    assert json.loads((engine / "engine_args.json").read_text()) == {**given, "dtype": "bfloat16"}
    assert (manifest.engine_kind, manifest.world_size, manifest.dtype) == ("vllm", 8, "bfloat16")
    assert (manifest.max_seq_len, manifest.max_batch_size, manifest.sm) == (512, 8, None)
    assert manifest.library.version == TABLE.version
    assert (engine / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()
    assert (engine / "tokenizer.json").is_file()


def test_quantized_weights_stay_as_they_are(model: Path, tmp_path: Path) -> None:
    config = json.loads((model / "config.json").read_text())
    for method in ("awq", "compressed-tensors"):
        config["quantization_config"] = {"quant_method": method, "bits": 4}
        (model / "config.json").write_text(json.dumps(config))
        shutil.rmtree(tmp_path / "engine", ignore_errors=True)
        manifest, engine = built(tmp_path, KEYS)
        assert manifest.quantization == method
        assert (engine / "model.safetensors").read_bytes() == (model / "model.safetensors").read_bytes()


def test_a_quantization_told_beside_the_configuration_is_taken_along(model: Path, tmp_path: Path) -> None:
    (model / "quantize_config.json").write_text(json.dumps({"bits": 4, "group_size": 128}))
    manifest, engine = built(tmp_path, KEYS)
    assert manifest.quantization == "gptq"
    assert (engine / "quantize_config.json").is_file()


def test_a_length_beyond_the_model_is_refused_unless_overridden(model: Path, tmp_path: Path) -> None:
    with pytest.raises(CodedError, match=r"E1203.*at most 1024.*but is 4096"):
        built(tmp_path, {**KEYS, "vllm": {"max_model_len": 4096}})
    overrides = {"max_position_embeddings": 4096}
    manifest, _ = built(
        tmp_path, {"engine": "vllm", "vllm": {"max_model_len": 4096, "hf_overrides": overrides}}
    )
    assert manifest.max_seq_len == 4096


def make_adapter(folder: Path, rank: object, **keys: object) -> None:
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps({"r": rank, "peft_type": "LORA", **keys}))
    (folder / "adapter_model.safetensors").write_bytes(b"\x02\0\0\0\0\0\0\0{}")


@pytest.mark.parametrize(("given", "ranks"), [({}, 48), ({"max_loras": 2}, 32), ({"max_lora_rank": 8}, 24)])
def test_the_room_for_adapters_is_that_of_those_that_run_at_once(given: dict[str, Any], ranks: int) -> None:
    lora = {name: {"model_path": name} for name in ("one", "two", "three")}
    keys = {**KEYS, "model_id": "a/b", "lora": lora}
    plan = Plan(BuildConfig.model_validate({**keys, "vllm": given}))
    assert plan.memory_arguments().adapter_ranks == ranks
    with pytest.raises(ConflictingBuildKeys, match=r"max_loras 3 and vllm\.max_cpu_loras 2"):
        Plan(BuildConfig.model_validate({**keys, "vllm": {"max_cpu_loras": 2}}))


def test_adapters_are_packed_by_name_and_vllm_gets_room_for_them(model: Path, tmp_path: Path) -> None:
    make_adapter(tmp_path / "one", 8)
    make_adapter(tmp_path / "two", 8, rank_pattern={"q_proj": 24})
    lora = {"french": {"model_path": "one"}, "pirate": {"model_path": "two"}}
    _, engine = built(
        tmp_path, {"engine": "vllm", "lora": lora, "vllm": {"max_cpu_loras": 8, "enable_lora": False}}
    )
    given = json.loads((engine / "engine_args.json").read_text())
    assert given == {"enable_lora": True, "max_loras": 2, "max_lora_rank": 32, "max_cpu_loras": 8}
    assert sorted(path.name for path in (engine / "lora" / "pirate").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_a_wrong_adapter_is_refused(model: Path, tmp_path: Path) -> None:
    make_adapter(tmp_path / "one", 1024)
    make_adapter(tmp_path / "dora", 8, use_dora=True)
    make_adapter(tmp_path / "other", 8, peft_type="IA3")
    make_adapter(tmp_path / "true", True)
    (tmp_path / "empty").mkdir()
    for lora, told in (
        ({"a": {"model_path": "one"}}, "E1210.*rank"),
        ({"a": {"model_path": "dora"}}, "E1210.*does not describe a LoRA"),
        ({"a": {"model_path": "other"}}, "E1210.*does not describe a LoRA"),
        ({"a": {"model_path": "true"}}, "E1210.*rank"),
        ({"a": {"model_path": "empty"}}, "E1210.*no adapter_config.json"),
        ({"a": {"model_path": "nowhere"}}, "E1205"),
        ({"a": {}}, "E1204.*lora.a"),
        ({"../a": {"model_path": "one"}}, "E1203"),
        ({"a": {"model_pth": "one"}}, "E1202.*did you mean model_path"),
    ):
        with pytest.raises(CodedError, match=told):
            built(tmp_path, {**KEYS, "lora": lora})


@pytest.mark.parametrize(
    ("given", "is_noted"),
    [
        ({"speculative_config": {"method": "eagle3", "model": "a/b"}}, True),
        ({"spec_model": "a/b"}, True),
        ({"speculative_config": {"model": "/models/draft"}}, False),
        ({"speculative_config": {"model": "ngram", "num_speculative_tokens": 2}}, False),
        ({"speculative_config": None}, False),
    ],
)
def test_a_draft_model_that_the_engine_does_not_have_is_noted(given: dict[str, Any], is_noted: bool) -> None:
    plan = engine_plan(BuildConfig(engine="vllm", model_id="a/b", vllm=given))
    assert any("not in the engine" in note for note in plan.notes) == is_noted


def test_a_limit_of_ranks_below_an_adapters_is_refused(model: Path, tmp_path: Path) -> None:
    make_adapter(tmp_path / "one", 16)
    keys = {**KEYS, "lora": {"a": {"model_path": "one"}}, "vllm": {"max_lora_rank": 8}}
    with pytest.raises(CodedError, match=r"E1204.*max_lora_rank 8, but an adapter has the rank 16"):
        built(tmp_path, keys)
