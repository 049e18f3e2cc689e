"""The flags are data that agrees with itself, and arguments are checked and spelled by it."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from builder.trtllm.flags import (
    BUILD,
    CONVERT,
    QUANTIZE,
    argv,
    check_arguments,
    flags_of,
)
from errors.build_config import InvalidBuildValue, UnknownFlag
from errors.coded_error import CodedError

ALL = [
    (program, flag) for program in (BUILD, CONVERT, QUANTIZE) for flag in (flags_of(program) or {}).values()
]
NUMBERS_AND_WORDS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["auto", "enable"]),
)


def test_every_flag_takes_its_own_default_and_says_what_it_takes() -> None:
    for program, flag in ALL:
        assert flag.type in ("int", "float", "path", "text", "list", "switch", "toggle", "choice"), program
        assert flag.default is None or flag.allows(flag.default), flag
        assert flag.bare is None or flag.allows(flag.bare), flag
        assert flag.allowed
        assert flag.min <= flag.max
        assert (flag.min, flag.max) == (-math.inf, math.inf) or flag.type in ("int", "float"), flag


@pytest.mark.parametrize(
    ("program", "name", "remedy"),
    [
        (BUILD, "gemm-plugin", "did you mean gemm_plugin?"),
        (QUANTIZE, "qfromat", "did you mean qformat?"),
        (CONVERT, "use_weights_only", "did you mean use_weight_only?"),
        (BUILD, "zzz", "`trtllm-build --help` lists its flags"),
    ],
)
def test_a_wrong_name_is_answered_by_the_nearest_or_where_the_flags_are_listed(
    program: str, name: str, remedy: str
) -> None:
    with pytest.raises(UnknownFlag) as caught:
        check_arguments(program, {name: 1}, where="step.args")
    assert f"step.args.{name} is not a flag of {program} in TensorRT-LLM 0.16.0" in str(caught.value)
    assert remedy in str(caught.value)


@pytest.mark.parametrize(
    ("program", "args", "expected"),
    [
        (BUILD, {"max_batch_size": 0}, "a whole number, at least 1, but is 0"),
        (BUILD, {"max_batch_size": "many"}, "a whole number, at least 1, but is 'many'"),
        (BUILD, {"max_batch_size": True}, "but is True"),
        (BUILD, {"max_seq_len": 1.5}, "but is 1.5"),
        (BUILD, {"max_seq_len": None}, "but is empty"),
        (BUILD, {"context_fmha": None}, "'enable' or 'disable', but is empty"),
        (BUILD, {"context_fmha": True}, "'enable' or 'disable', but is True"),
        (BUILD, {"gemm_plugin": "fp16"}, "'auto', 'float16', 'float32', 'bfloat16', 'int32', 'fp8' or"),
        (BUILD, {"kv_cache_type": "pagd"}, "'paged', 'continuous' or 'disabled', but is 'pagd'"),
        (BUILD, {"strip_plan": "yes"}, "empty, true or false, but is 'yes'"),
        (BUILD, {"output_dir": ""}, "a path, but is ''"),
        (QUANTIZE, {"qformat": "int3"}, "'fp8', 'int8_sq', 'int4_awq'"),
        (QUANTIZE, {"auto_quantize_bits": 2}, "a number from 4 to 16, but is 2"),
        (CONVERT, {"smoothquant": 1.5}, "a number from 0 to 1, but is 1.5"),
        (CONVERT, {"smoothquant": float("nan")}, "but is nan"),
        (CONVERT, {"embedding_sharding_dim": 2}, "0 or 1, but is 2"),
    ],
)
def test_a_wrong_value_is_answered_by_what_is_allowed(
    program: str, args: dict[str, Any], expected: str
) -> None:
    with pytest.raises(InvalidBuildValue) as caught:
        check_arguments(program, args, where="s.args")
    assert str(caught.value).startswith(f"E1203 InvalidBuildValue: s.args.{next(iter(args))} must be ")
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("program", "args"),
    [
        (BUILD, {"max_batch_size": "64", "max_decoder_seq_len": 5, "strip_plan": None, "dry_run": False}),
        (BUILD, {"max_draft_len": 0, "lora_dir": "a b", "lora_target_modules": "attn_q attn_v"}),
        (CONVERT, {"embedding_sharding_dim": 0, "weight_only_precision": None, "smoothquant": "0.5"}),
        (CONVERT, {"smoothquant": 1}),
        (QUANTIZE, {"auto_quantize_bits": 16}),
        ("my_script.py", {"anything": "goes"}),
    ],
)
def test_what_the_program_takes_is_taken(program: str, args: dict[str, Any]) -> None:
    check_arguments(program, args, where="s.args")


def test_a_flag_of_another_example_is_unknown() -> None:
    check_arguments(CONVERT, {"gpt_variant": "starcoder"}, where="s.args", example_name="gpt")
    check_arguments(CONVERT, {"gpt_variant": "starcoder"}, where="s.args")
    with pytest.raises(UnknownFlag):
        check_arguments(CONVERT, {"gpt_variant": "starcoder"}, where="s.args", example_name="llama")


def test_zero_and_false_are_values_and_an_empty_value_is_a_flag_alone() -> None:
    args = {"a": 0, "b": False, "c": None, "d": "x y", "e": 0.5, "f": True}
    assert argv(args) == ["--a", "0", "--b", "False", "--c", "--d", "x y", "--e", "0.5", "--f", "True"]


def test_a_switch_is_given_or_left_out_and_a_list_is_several_words() -> None:
    args = {"per_token": True, "per_channel": None, "load_by_shard": False, "tp_size": 2}
    assert argv(args, CONVERT) == ["--per_token", "--per_channel", "--tp_size", "2"]
    assert argv({"lora_dir": "a b"}, BUILD) == ["--lora_dir", "a", "b"]


@given(
    st.dictionaries(st.text(max_size=12) | st.sampled_from(sorted(flags_of(BUILD) or {})), NUMBERS_AND_WORDS)
)
def test_any_arguments_are_either_taken_or_refused_by_a_code(args: dict[str, Any]) -> None:
    try:
        check_arguments(BUILD, args, where="build.args")
    except CodedError as exc:
        assert exc.code in ("E1203", "E1220")
    else:
        assert all(isinstance(word, str) for word in argv(args, BUILD))
