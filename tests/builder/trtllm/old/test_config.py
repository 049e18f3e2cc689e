"""Every config ever written for cog-trt-llm builds, and what became of its words is told, a line each."""

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from builder.config.file import ConfigFile, parse_config
from builder.trtllm.flags import BUILD, CONVERT, QUANTIZE, argv
from builder.trtllm.old.config import migrate
from builder.trtllm.old.flags import flag_changes
from builder.trtllm.rules import check
from builder.trtllm.sizing import fit
from builder.trtllm.summary import TrtllmBuild
from cli.migrate import config_text
from errors.coded_error import CodedError
from tests.builder.trtllm.old import old_configs as old

BUILD_CHANGES, CONVERT_CHANGES, QUANTIZE_CHANGES = map(flag_changes, (BUILD, CONVERT, QUANTIZE))

MODEL = "/src/models/a/b"
VALUES: dict[str, Any] = {
    "embedding_sharding_dim": 0, "weight_only_precision": "int8", "dtype": "float16",
    "meta_ckpt_dir": "./meta", "quant_ckpt_path": "./gptq.safetensors", "timing_cache": "./model.cache",
    "group_size": 64, "smoothquant": 0.5, "pp_size": 2, "cp_size": 1, "tp_size": 2, "world_size": 2,
    "hf_lora_dir": "./lora", "tensor-parallelism": 2, "infer-gpu-num": 2, "processes": 4,
    "storage-type": "fp16", "data_type": "fp32", "model": "starcoder", "in-file": MODEL, "out-dir": "./ft",
    "max_lora_rank": 8, "lora_target_modules": "attn_q attn_v", "export_path": "./c.npz",
    "max_seq_length": 2048, "ammo_quant_ckpt_path": "./a.npz",
}  # fmt: skip
"""A value for each flag of old that takes one; the others stand alone."""


def dump(keys: dict[str, Any]) -> str:
    return yaml.safe_dump(keys, sort_keys=False, allow_unicode=True)


def parse(text: str) -> ConfigFile:
    return parse_config(text.encode(), shown="x.yaml", folder=None)


def planned(text: str) -> tuple[TrtllmBuild, tuple[str, ...]]:
    file = parse(text)
    return check(file.config)[0], file.notes


def of_build(args: dict[str, Any], script: str = "build.py") -> dict[str, Any]:
    convert = {
        "script": "hf_gpt_convert.py",
        "output_dir": "./ft/1-gpu",
        "args": {"in-file": MODEL, "out-dir": "./ft"},
    }
    build = {"script": script, "output_dir": "./e", "args": {"model_dir": "./ft/1-gpu", **args}}
    return {"model_id": "a/b", "example_name": "llama", "convert_to_ft": convert, "build": build}


@pytest.mark.parametrize("name", old.ALL)
def test_each_known_shape_plans_without_a_hand_on_it_and_is_migrated_once(name: str) -> None:
    build, _ = planned(old.ALL[name])
    assert build.calls[-1].program == "trtllm-build"
    assert build.max_seq_len is None or build.fit_lengths
    assert {call.program for call in build.calls[:-1]} <= {"convert_checkpoint.py", "quantize.py"}
    fit(build, {"max_position_embeddings": 4096})
    once, changes = migrate(yaml.safe_load(old.ALL[name]))
    assert changes
    assert migrate(once) == (once, ())


def test_the_quick_start_becomes_todays_two_programs() -> None:
    build, notes = planned(old.QUICK_START)
    convert, compile_ = build.calls
    assert argv(convert.args, convert.program) == [
        "--model_dir", "/src/models/sshleifer/tiny-gpt2", "--tp_size", "1", "--dtype", "float16",
        "--output_dir", "./c-model/gpt2/1-gpu",
    ]  # fmt: skip
    assert argv(compile_.args, compile_.program) == [
        "--checkpoint_dir", "./c-model/gpt2/1-gpu", "--output_dir", "./engine_outputs/",
        "--gpt_attention_plugin", "auto", "--remove_input_padding", "enable",
    ]  # fmt: skip
    assert notes == (
        "convert_to_ft.script: hf_gpt_convert.py is now convert_checkpoint.py",
        "convert_to_ft.args.in-file: dropped (the folder of model_id is read)",
        "convert_to_ft.args.out-dir: dropped (given by output_dir)",
        "convert_to_ft.args.tensor-parallelism: now tp_size 1",
        "convert_to_ft.args.storage-type: now dtype float16",
        "build.script: build.py is now trtllm-build",
        "build.args.model_dir: dropped (the checkpoint of the step before is read)",
        "build.args.use_gpt_attention_plugin: now gpt_attention_plugin auto",
        "build.args.remove_input_padding: was without a value, now enable",
    )


def test_every_flag_of_an_old_build_has_one_line_and_a_config_that_plans() -> None:
    for name, change in BUILD_CHANGES.items():
        with_it = {"lora_plugin": "auto"} if change.to == "lora_dir" else {}
        keys, changes = migrate(of_build({name: VALUES.get(name), **with_it}))
        (told,) = [each for each in changes if each.startswith(f"build.args.{name}: ")]
        build, _ = planned(dump(keys | {"version": 1}))
        where = build.checkpoint if change.step == "checkpoint" else build.build
        assert where is not None
        assert name == change.to or name not in build.build.args
        if change.to is None:
            assert told == f"build.args.{name}: dropped ({change.why})"
        else:
            assert change.to in where.args
            moved = f"{where.key}.args.{change.to}" if where.key != "build" else change.to
            assert told.startswith(f"build.args.{name}: now {moved}")


def test_every_flag_of_an_old_conversion_or_quantization_has_one_line_and_a_config_that_plans() -> None:
    for name, change in CONVERT_CHANGES.items():
        keys = of_build({"lora_plugin": "auto"} if change.to == "lora_dir" else {})
        keys["example_name"] = "gpt" if change.to == "gpt_variant" else "llama"
        keys["convert_to_ft"]["args"] |= {name: VALUES.get(name)}
        keys["convert_to_ft"]["output_dir"] = keys["build"]["args"]["model_dir"] = "./ft/2-gpu"
        migrated, changes = migrate(keys)
        assert [each.partition(": ")[0] for each in changes].count(f"convert_to_ft.args.{name}") == 1
        build, _ = planned(dump(migrated | {"version": 1}))
        assert build.checkpoint is not None
        if change.to is not None:
            assert change.to in (build.build if change.step == "build" else build.checkpoint).args
    for name in QUANTIZE_CHANGES:
        step = {"script": "quantize.py", "output_dir": "./c", "args": {name: VALUES.get(name)}}
        build_step = {"script": "build.py", "output_dir": "./e", "args": {"model_dir": MODEL}}
        steps = {"quantize": step, "build": build_step}
        keys, changes = migrate({"model_id": "a/b", "example_name": "llama", **steps})
        assert [each.partition(": ")[0] for each in changes].count(f"quantize.args.{name}") == 1
        planned(dump(keys | {"version": 1}))


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"use_gemm_plugin": None}, "--gemm_plugin auto"),
        ({"use_gemm_plugin": "bfloat16"}, "--gemm_plugin bfloat16"),
        ({"use_gemm_plugin": False}, "--gemm_plugin disable"),
        ({"enable_context_fmha": True}, "--context_fmha enable"),
        ({"remove_input_padding": False}, "--remove_input_padding disable"),
        ({"paged_kv_cache": None}, "--kv_cache_type paged"),
        ({"paged_kv_cache": "disable", "use_paged_context_fmha": "disable"}, "--kv_cache_type continuous"),
        ({"max_input_len": 500, "max_output_len": 250}, "--max_seq_len 750"),
        ({"max_output_len": 500}, "--max_seq_len 1524"),
        ({"max_output_len": "500", "max_input_len": "12"}, "--max_seq_len 512"),
        ({"use_fused_mlp": None}, "--use_fused_mlp enable"),
        ({"strip_plan": None}, "--strip_plan"),
        # What the build decided of old is decided at conversion.
        ({"use_weight_only": None, "weight_only_precision": "int4"}, "--weight_only_precision int4"),
        ({"use_smooth_quant": None, "per_token": None}, "--smoothquant 0.5 --per_token"),
        ({"int8_kv_cache": None}, "--int8_kv_cache"),
        ({"world_size": 4, "pp_size": 2}, "--tp_size 2 --pp_size 2"),
        ({"world_size": 4, "tp_size": 4}, "--tp_size 4"),
        ({"enable_fp8": None, "fp8_kv_cache": None}, "--use_fp8 --fp8_kv_cache"),
        ({"dtype": "bfloat16"}, "--dtype bfloat16"),
        ({"parallel_build": None, "world_size": 4}, "--workers 4"),
    ],
)  # fmt: skip
def test_a_value_of_old_is_what_it_meant(args: dict[str, Any], words: str) -> None:
    build, _ = planned(dump(of_build(args)))
    assert words in " ".join(word for call in build.calls for word in argv(call.args, call.program))


def test_a_switch_that_is_off_stays_off_an_empty_step_is_none_and_an_unknown_name_is_refused() -> None:
    build, notes = planned(dump(of_build({"use_weight_only": False})))
    assert build.quantization is None
    assert "build.args.use_weight_only: dropped (it is off)" in notes
    build, _ = planned(dump(of_build({"int8_kv_cache": None}) | {"quantize": None}))
    assert build.kv_cache_quantization == "INT8"
    with pytest.raises(CodedError, match=r"build\.args\.use_gem_plugin .* did you mean"):
        planned(dump(of_build({"use_gem_plugin": None})))


@pytest.mark.parametrize("source", ["./ft/1-gpu", "/src/ft/1-gpu", "./ft", "ft/1-gpu/"])
@pytest.mark.parametrize("output_dir", ["./ft/1-gpu", "./ft", "./elsewhere"])
def test_a_folder_that_an_old_script_appended_is_followed(source: str, output_dir: str) -> None:
    keys = of_build({})
    keys["build"]["args"]["model_dir"] = source
    keys["convert_to_ft"]["output_dir"] = output_dir
    build, _ = planned(dump(keys))
    assert build.checkpoint is build.calls[0]


def test_a_one_stage_build_gets_its_conversion() -> None:
    build, notes = planned(old.LLAMA_ONE_STAGE)
    assert [call.key for call in build.calls] == ["convert_to_ft", "build"]
    assert build.dtype == "float16"
    assert build.calls[0].value("model_dir") == f"/src/models/{old.LLAMA_13B}"
    assert build.build.output_dir == "./engine_outputs_1/"
    assert build.max_seq_len == 1000
    assert "build.args.output_dir: dropped (given by build.output_dir)" in notes
    assert any("n_positions: dropped" in each for each in notes)


def test_a_checkpoint_that_no_step_makes_gets_its_conversion_in_the_plugins_precision() -> None:
    build, notes = planned(old.LLAMA_CONVERTED_BEFORE)
    assert build.dtype == "float16"
    assert any(each.startswith("convert_to_ft: added, as no step makes the checkpoint") for each in notes)


def test_smoothquant_weights_of_ft_are_the_checkpoint() -> None:
    build, _ = planned(old.LLAMA_SMOOTHQUANT_OF_FT)
    assert build.quantization == "W8A8_SQ_PER_CHANNEL_PER_TOKEN_PLUGIN"
    assert build.kv_cache_quantization == "INT8"
    assert (build.tp_size, build.build.value("workers")) == (2, 2)


def test_awq_weights_in_a_file_are_a_checkpoint_now() -> None:
    build, notes = planned(old.LLAMA_AWQ_OF_FILE)
    assert build.quantization == "W4A16_AWQ"
    assert build.build.args["checkpoint_dir"] == build.checkpoint.output_dir == "./awq"
    assert "build.args.use_weight_only: dropped (quantize.py decides)" in notes


def test_a_script_of_another_example_is_found_by_its_name() -> None:
    keys = of_build({}, script="../gpt/build.py")
    keys["convert_to_ft"] = {"script": "../llama/convert_checkpoint.py", "output_dir": "./ft/1-gpu"}
    keys["example_name"] = "mixtral"
    migrated, changes = migrate(keys)
    assert migrated["example_name"] == "llama"
    assert changes[0] == "convert_to_ft.script: now convert_checkpoint.py of example_name llama"


def test_lengths_of_old_knew_no_limit_and_are_cut_to_the_models() -> None:
    build, _ = planned(old.LLAMA_INT8_2GPU)
    fitted, (note,) = fit(build, {"max_position_embeddings": 4096})
    assert fitted.max_seq_len == 4096
    assert "8192 reduced to 4096" in note


def test_a_config_with_a_version_or_another_engine_stays_as_it_is() -> None:
    keys = of_build({"use_gemm_plugin": None})
    for more in ({"version": 1}, {"engine": "transformers"}):
        assert migrate(keys | more) == (keys | more, ())


def test_a_placeholder_is_no_token() -> None:
    file = parse(old.STARCODER)
    assert file.hf_token is None
    assert "hf_token: ignored, it is a placeholder" in file.notes


WORDS = sorted({*BUILD_CHANGES, *CONVERT_CHANGES, *QUANTIZE_CHANGES, "checkpoint_dir", "max_seq_len"})
STEPS = ("convert_to_ft", "quantize", "build")
PLACES = [
    *((key,) for key in ("version", "model_id", "model_name", "example_name", "hf_token", "target", *STEPS)),
    *((step, key) for step in STEPS for key in ("script", "executable", "output_dir", "args")),
    *((step, "args", word) for step in STEPS for word in WORDS),
]
SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=8),
    st.sampled_from(["float16", "./ft", "./ft/1-gpu", MODEL, "enable", "disable", "0.5", "1" * 5000]),
    st.sampled_from(["build.py", "hf_gpt_convert.py", "quantize.py", "../llama/build.py", "trtllm-build"]),
)  # fmt: skip
ANYTHING = st.recursive(SCALARS, lambda each: st.lists(each, max_size=3), max_leaves=4)


def put(config: dict[str, Any], place: tuple[str, ...], value: object) -> None:
    *outer, last = place
    for key in outer:
        if not isinstance(config.get(key), dict):
            config[key] = {}
        config = config[key]
    config[last] = value


@settings(max_examples=400, deadline=None)
@given(
    st.sampled_from(sorted(old.ALL.values())),
    st.lists(st.tuples(st.sampled_from(PLACES), ANYTHING), max_size=5),
)
def test_any_config_is_planned_or_refused_by_a_code(
    text: str, changes: list[tuple[tuple[str, ...], object]]
) -> None:
    config = yaml.safe_load(text)
    for place, value in changes:
        put(config, place, value)
    try:
        planned(dump(config))
    except CodedError as exc:
        assert exc.code.startswith("E12")


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(st.sampled_from(WORDS), SCALARS, max_size=6), st.booleans(), st.booleans())
def test_whatever_an_old_build_said_its_migrated_form_is_written_read_and_stays(
    args: dict[str, Any], of_script: bool, converts: bool
) -> None:
    keys = of_build(args)
    if not of_script:
        keys["build"] |= {"script": None, "executable": "trtllm-build"}
    if not converts:
        del keys["convert_to_ft"]
    once, _ = migrate(keys)
    assert migrate(once) == (once, ())
    try:
        file = parse(dump(keys))
        build, _ = check(file.config)
    except CodedError:
        return
    written = parse(config_text(file.config, file.notes))
    assert written.notes == ()
    assert check(written.config)[0].calls == build.calls


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=200) | st.binary(max_size=200))
def test_any_text_is_planned_or_refused_by_a_code(text: str | bytes) -> None:
    try:
        check(parse_config(text.encode() if isinstance(text, str) else text, shown="x", folder=None).config)
    except CodedError as exc:
        assert exc.code.startswith("E12")
