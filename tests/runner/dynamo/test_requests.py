"""Requests of Dynamo's front ends become messages for the engine server, or errors with a code."""

from pathlib import Path
from typing import Any

import pytest

from errors import find_in_text
from errors.coded_error import CodedError
from runner.dynamo.requests import chunk, submit_message
from runner.dynamo.start import DynamoStart
from runner.engines.protocol.messages import Guide, Output, Sampling, Submit, TokenLogProb

START = DynamoStart(
    engine_socket=Path("/socket"),
    engine_kind="vllm",
    engine_dir=Path("/engine"),
    has_chat=True,
    chat_template=Path("/template.jinja"),
    names=("model",),
    adapters=("adapter",),
    end_ids=(2, 3),
    pad_id=1,
    max_sequence_length=100,
    max_input_length=90,
    sampling_defaults={"temperature": 0.6, "top_k": 20, "max_new_tokens": 7},
    lowest_priority=-5,
    timeout_s=1.0,
    discovery="file",
    host="127.0.0.1",
)


def asked(lora_name: str | None = None, **parts: dict[str, Any]) -> Submit:
    """Convert a request of the front end, which sends None for fields that are not set."""
    stop = {
        "max_tokens": None,
        "stop": None,
        "stop_token_ids_hidden": [2],
        **parts.pop("stop_conditions", {}),
    }
    sampling = {"n": None, "temperature": None, "guided_decoding": None, **parts.pop("sampling_options", {})}
    request = {"token_ids": [5, 6], "stop_conditions": stop, "sampling_options": sampling, **parts}
    return submit_message(request, START, lora_name)


def test_the_message_survives_its_way_to_the_worker() -> None:
    assert DynamoStart.decode(START.encode()) == START


def test_a_request_that_sets_nothing_has_the_models_defaults() -> None:
    submit = asked()
    assert submit.sampling == Sampling(temperature=pytest.approx(0.6), top_k=20)
    assert (submit.max_tokens, submit.min_tokens, submit.end_id, submit.stop_words) == (98, 0, 2, [[3]])
    assert (submit.guide, submit.lora_name, submit.priority, submit.wants_log_probs) == (None, None, 0, False)


def test_what_it_sets_is_passed_on() -> None:
    submit = asked(
        "adapter",
        stop_conditions={"max_tokens": 500, "min_tokens": 4, "stop_token_ids": [9]},
        sampling_options={"temperature": 0.0, "seed": 3, "frequency_penalty": 0.5},
        output_options={"logprobs": 4},
        routing={"priority": 5, "cache_salt": "salt"},
    )
    assert submit.sampling.is_greedy
    assert submit.sampling.frequency_penalty == 0.5
    assert (submit.max_tokens, submit.min_tokens, submit.stop_words) == (98, 4, [[3], [9]])
    assert (submit.wants_log_probs, submit.num_top_log_probs) == (True, 4)
    assert (submit.lora_name, submit.priority, submit.cache_salt) == ("adapter", -5, "salt")


def test_no_token_ends_a_text_that_ignores_the_end() -> None:
    submit = asked(stop_conditions={"ignore_eos": True, "stop_token_ids_hidden": None})
    assert (submit.end_id, submit.stop_words) == (None, [])


@pytest.mark.parametrize(
    ("given", "guide"),
    [
        ({"json": {"type": "object"}}, Guide("json_schema", '{"type":"object"}')),
        ({"json": '{"type": "object"}', "regex": None}, Guide("json_schema", '{"type": "object"}')),
        ({"regex": "a+"}, Guide("regex", "a+")),
        ({"choice": ["ja", 'n"']}, Guide("ebnf_grammar", 'root ::= "ja" | "n\\""')),
        ({"grammar": 'root ::= "a"'}, Guide("ebnf_grammar", 'root ::= "a"')),
    ],
)
def test_guides(given: dict[str, Any], guide: Guide) -> None:
    assert asked(sampling_options={"guided_decoding": given}).guide == guide


@pytest.mark.parametrize(
    ("parts", "code", "name"),
    [
        ({"sampling_options": {"n": 2}}, "E1601", "n"),
        ({"sampling_options": {"best_of": 2}}, "E1601", "best_of"),
        ({"sampling_options": {"use_beam_search": True}}, "E1601", "use_beam_search"),
        ({"sampling_options": {"length_penalty": 0.5}}, "E1601", "length_penalty"),
        ({"sampling_options": {"include_stop_str_in_output": True}}, "E1601", "include_stop_str_in_output"),
        ({"stop_conditions": {"max_thinking_tokens": 0}}, "E1601", "max_thinking_tokens"),
        ({"output_options": {"prompt_logprobs": 0}}, "E1601", "prompt_logprobs"),
        (
            {"sampling_options": {"guided_decoding": {"whitespace_pattern": " "}}},
            "E1601",
            "whitespace_pattern",
        ),
        ({"sampling_options": {"guided_decoding": {"structural_tag": {"a": 1}}}}, "E1601", "structural_tag"),
        ({"sampling_options": {"guided_decoding": {"regex": "a", "json": {}}}}, "E1005", "guided_regex"),
        ({"multi_modal_data": {"image_url": []}}, "E1601", "multi_modal_data"),
        ({"prefill_result": {"disaggregated_params": 1}}, "E1601", "prefill_result"),
        ({"token_ids": [1] * 91}, "E1002", "91"),
        ({"routing": {"priority": 6}}, "E1005", "priority"),
        ({"routing": {"cache_salt": "s" * 1025}}, "E1005", "cache_salt"),
    ],
)
def test_what_can_not_be_served_is_refused_with_a_code(
    parts: dict[str, dict[str, Any]], code: str, name: str
) -> None:
    with pytest.raises(CodedError, match=name) as raised:
        asked(**parts)
    found = find_in_text(str(raised.value))
    assert found.code == code


@pytest.mark.parametrize(
    "neutral", [{"n": 1}, {"best_of": 1}, {"use_beam_search": False}, {"length_penalty": 1.0}]
)
def test_neutral_values_are_accepted(neutral: dict[str, Any]) -> None:
    assert asked(sampling_options=neutral) == asked()


def test_outputs_have_dynamos_form() -> None:
    log_probs = [TokenLogProb(-0.5, [(7, -0.5), (8, -1.5)])]
    first = chunk(Output(tokens=[7], log_probs=log_probs), 2, 1, None)
    top = [
        {"rank": 1, "token_id": 7, "token": None, "logprob": -0.5},
        {"rank": 2, "token_id": 8, "token": None, "logprob": -1.5},
    ]
    assert first == {"token_ids": [7], "index": 0, "log_probs": [-0.5], "top_logprobs": [top]}
    usage = {
        "prompt_tokens": 2,
        "completion_tokens": 3,
        "total_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 1},
    }
    for reason, name in (("end", "eos"), ("stop", "stop"), ("length", "length"), ("cancelled", "cancelled")):
        last = chunk(Output(tokens=[], finish_reason=reason), 2, 3, 1)
        assert last == {"token_ids": [], "index": 0, "finish_reason": name, "completion_usage": usage}
