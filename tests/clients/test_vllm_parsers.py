"""vLLM's own tests of its parsers, from its source on PyPI, hold for our families, except for known cases.

The source is neither built nor imported: see ``vllm_plugin.py``.
"""

import json
import os
import re
import subprocess
from pathlib import Path

from tests.clients.conftest import PYTHON, ROOT
from tests.clients.sdists import sdist_files

_NAME = "vllm==0.33.0"
_SHA256 = "f4c33c2503d52bb411146afa9618a4f48bed68912f617e6803ac8d76e4c74112"
_ENGINES = "deepseek_v32|gemma4_streaming_reasoning|ling3|minimax_m2|minimax_m3|nemotron_v3|seed_oss"
_FILES = (
    r"tests/tool_parsers/(?!test_utils|test_structural_tag_registry).+\.py"
    r"|tests/(parser|tool_use)/__init__\.py|tests/tool_use/test_kimi_k3_tool_parser\.py"
    rf"|tests/parser/engine/(conftest|replay_harness|streaming_helpers|trace_builder|__init__|test_({_ENGINES}))"
    r"\.py|vllm/(parser|tool_parsers)/.+\.py"
)
_LEAST_TESTS = 350
_DIFFERENCES = {
    "Text after calls, between them or before them is content": {
        "deepseekv31": "extract_tool_calls_with_multiple_tools",
        "step3p5": "extract_tool_calls_non_streaming_mixed_content_and_multiple_tool_calls",
        "llama3_json": "extract_tool_calls_simple",
        "minicpm5xml": "single_call_with_surrounding_text multiple_calls_interleaved_text",
        "minimax_m3": "text_after_tool_block_is_dropped",
    },
    "Line breaks before a call are left out, and spaces stay": {
        "minimax_m3": "multiple_invokes_and_prefix_content non_streaming_nested_tool_call",
        "apertus": "text_before_tool_call",
        "functiongemma": "text_before_tool_call",
        "gemma4": "text_before_tool_call",
        "glm4_moe": "extract_tool_calls_with_glm45_newline_format",
    },
    "Markers without a call stay in the text": {"deepseekv4": "function_calls_wrapper_is_not_recognized"},
    "A call without its last bracket or end marker is a call": {
        "hermes": (
            "hermes_parser_non_streaming_tool_call_invalid_json[granite4] "
            "hermes_parser_non_streaming_tool_call_invalid_json[llama]"
        ),
        "llama3_json": "extract_tool_calls_invalid_json",
        "minicpm5xml": "incomplete_missing_function_end",
        "k2_horizon": "malformed_and_incomplete_input_is_content[",
    },
    "A call of an unknown tool, or with parameters that its schema doesn't have, is a call": {
        "dots": "non_stream_unknown_tool_is_left_as_content",
        "k2_horizon": "unknown_or_wrong_named_tool_fails_closed",
        "minicpm5xml": (
            "case_sensitive_param_name_invalid duplicate_param_names_invalid "
            "extra_arguments_do_not_satisfy_required extra_arguments_ignored_when_required_present "
            "param_missing_name_invalid unknown_tool_block_preserved wrapped_arguments_still_validate_schema "
            "zero_arg_tool_ignores_extra_arguments"
        ),
        "minimax_m2": "invalid_tool_name_is_rejected mixed_tool_names_only_return_valid",
    },
    "K2-Horizon: each of its formats is read, whichever the request asks for": {
        "k2_horizon": (
            "mismatched_formats_fail_closed[tool_request0- mismatched_formats_fail_closed[tool_request1- "
            "mismatched_formats_fail_closed[tool_request2-call2] "
            "mismatched_formats_fail_closed[tool_request3-call3]"
        )
    },
    "Arguments in JSON stay as they are": {"k2_horizon": "request_level_format_overrides[json-"},
    "Kimi K2: an id without a number (`functions.NAME`) names a tool, too": {
        "kimi_k2": "invalid_funcall_id_skipped"
    },
    "Kimi K3 and MiniCPM 5: markers with other spaces in them (`<functionname=`) are text": {
        "kimi_k3": "extract_content_from_whitespace_degraded_markers",
        "minicpm5xml": (
            "collapsed_function_and_param_tags collapsed_param_tags_with_tokenizer_space_function "
            "collapsed_tags_current_weather thinking_only_sentencepiece_normalized_in_content "
            "tokenizer_space_marker"
        ),
    },
    "MiniCPM 5: names stay as they are": {
        "minicpm5xml": (
            "alias_enable_roaming alias_get_details_by_phone alias_get_line_details "
            "properties_wrapped_arguments"
        )
    },
    "Gemma 4: a call without the word `call` or a brace is text": {
        "gemma4": (
            "bare_malformed_then_well_formed bare_opener_empty_args bare_opener_multiple_args "
            "bare_opener_non_streaming colon_in_content_not_broken malformed_no_brace_bounded "
            "malformed_then_well_formed three_mixed_calls"
        )
    },
    "LFM2: what is no literal of Python (`07`, a set, quotes in quotes) stays text": {
        "lfm2": (
            "echoed_tool_call_body_not_leaked_to_content tool_call[leading_zero_int_nonstreaming] "
            "tool_call[nested_python_c_nonstreaming] tool_call[nested_quote_nonstreaming] "
            "tool_call[nul_byte_string_arg_nonstreaming] tool_call[set_arg_nonstreaming]"
        )
    },
    "MiniMax M3: `018956` is no JSON, so it stays a string, and text between elements is left out": {
        "minimax_m3": "mixed_text_uses_reserved_field nested_elements_follow_schema"
    },
    "MiniMax M3: elements `item` are a list unless the schema says otherwise": {
        "minimax_m3": "unknown_tool_keeps_text_and_nests_objects"
    },
    "Where a schema gives no type, JSON is read as JSON, and `5.0` stays `5.0`": {
        "deepseekv32": "number_param",
        "gemma4_streaming_reasoning": "number_and_boolean number_whole_normalized",
    },
    "xLAM: a list of JSON is a call at the beginning of the answer or after a marker": {
        "xlam": "extract_tool_calls[single_tool_with_think_tag]"
    },
    "The prompt tells whether an answer begins in reasoning": {
        "minimax_m2": "no_tool_calls",
        "nemotron_v3": "no_tool_calls",
    },
}
"""Failing tests of vLLM by difference, as a sentence of ``docs/families.md`` names it, and by file."""


def test_our_families_read_what_vllm_reads_except_for_known_differences(tmp_path: Path) -> None:
    source = sdist_files(_NAME, _SHA256, _FILES, tmp_path)
    results = tmp_path / "results.json"
    options = [
        "-p",
        "tests.clients.vllm_plugin",
        "--results",
        str(results),
        "-c",
        "/dev/null",
        "--rootdir",
        ".",
    ]
    subprocess.run(
        [PYTHON, "-m", "pytest", *options, "-q", "--tb=no", "-p", "no:cacheprovider", "tests"],
        cwd=source,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}.", "PYTHONDONTWRITEBYTECODE": "1"},
        stdout=subprocess.DEVNULL,
        timeout=500,
        check=False,  # Tests of other things fail.
    )
    held: dict[str, bool] = json.loads(results.read_text())
    assert len(held) > _LEAST_TESTS
    failed = {_short(name) for name, is_held in held.items() if not is_held}
    known = [(file, names.split()) for tests in _DIFFERENCES.values() for file, names in tests.items()]
    assert failed == {(file, name) for file, names in known for name in names}


def test_the_differences_are_those_of_the_documentation() -> None:
    text = (ROOT / "docs" / "families.md").read_text()
    (listed,) = re.findall(r"except in these cases:\n\n(.*?)\n\n", text, re.DOTALL)
    cases = [" ".join(each.split()) for each in listed.removeprefix("* ").split("\n* ")]
    assert [re.split(r"\. (?=vLLM)|\.$", each)[0] for each in cases] == list(_DIFFERENCES)


def _short(name: str) -> tuple[str, str]:
    """Return the file and the test, without a text that is a parameter."""
    file, *_, test = name.partition("<")[0].split("::")
    return Path(file).stem.removeprefix("test_").removesuffix("_tool_parser"), test.removeprefix("test_")
