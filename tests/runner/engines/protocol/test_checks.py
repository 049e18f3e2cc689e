"""What an engine can't run is refused before it, with the name of what is wrong and what to do instead."""

from typing import Any

import pytest

from errors.coded_error import CodedError
from errors.requests import InvalidTensor, PromptTooLong, UnsupportedArgument
from runner.engines.protocol.checks import check_request
from runner.engines.protocol.messages import GUIDE_TYPES, Guide, Ready, Sampling, Submit

VOCAB_SIZE = 300
MAX_SEQUENCE_LENGTH = 64
NAN, INFINITY = float("nan"), float("inf")


def check(engine_kind: str = "transformers", **request: Any) -> None:
    ready = Ready(engine_kind, VOCAB_SIZE, MAX_SEQUENCE_LENGTH, 8, GUIDE_TYPES)
    check_request(Submit(1, **{"input_ids": [1, 2], "max_tokens": 4, **request}), ready)


@pytest.mark.parametrize(
    ("request_", "error", "name"),
    [
        ({"input_ids": []}, InvalidTensor, "input_ids"),
        ({"input_ids": [1, VOCAB_SIZE]}, InvalidTensor, "input_ids"),
        ({"input_ids": [-1]}, InvalidTensor, "input_ids"),
        ({"max_tokens": 0}, InvalidTensor, "request_output_len"),
        ({"max_tokens": MAX_SEQUENCE_LENGTH}, InvalidTensor, "request_output_len"),
        ({"input_ids": [1] * MAX_SEQUENCE_LENGTH}, PromptTooLong, None),
        ({"min_tokens": -1}, InvalidTensor, "min_length"),
        ({"end_id": VOCAB_SIZE}, InvalidTensor, "end_id"),
        ({"stop_words": [[1], []]}, InvalidTensor, "stop_words_list"),
        ({"bad_words": [[1, VOCAB_SIZE]]}, InvalidTensor, "bad_words_list"),
        ({"sampling": Sampling(length_penalty=1.2)}, UnsupportedArgument, "len_penalty"),
        ({"sampling": Sampling(temperature=-0.1)}, InvalidTensor, "temperature"),
        ({"sampling": Sampling(temperature=NAN)}, InvalidTensor, "temperature"),
        ({"sampling": Sampling(top_k=-1)}, InvalidTensor, "runtime_top_k"),
        ({"sampling": Sampling(top_p=1.1)}, InvalidTensor, "runtime_top_p"),
        ({"sampling": Sampling(min_p=-0.1)}, InvalidTensor, "min_p"),
        ({"sampling": Sampling(repetition_penalty=0.0)}, InvalidTensor, "repetition_penalty"),
        ({"sampling": Sampling(presence_penalty=INFINITY)}, InvalidTensor, "presence_penalty"),
        ({"sampling": Sampling(frequency_penalty=NAN)}, InvalidTensor, "frequency_penalty"),
        ({"sampling": Sampling(logit_bias={10**6: 1.0})}, InvalidTensor, "logit_bias_ids"),
        ({"sampling": Sampling(logit_bias={1: NAN})}, InvalidTensor, "logit_bias_values"),
    ],
)
def test_what_is_wrong_is_named(request_: dict[str, Any], error: type[CodedError], name: str | None) -> None:
    with pytest.raises(error) as raised:
        check(**request_)
    assert raised.value.facts.get("name") == name


@pytest.mark.parametrize(
    "request_",
    [
        {"input_ids": [0, VOCAB_SIZE - 1], "max_tokens": MAX_SEQUENCE_LENGTH - 2},
        {"input_ids": [1] * (MAX_SEQUENCE_LENGTH - 1), "max_tokens": 1},
        {"sampling": Sampling(temperature=0.0, top_k=0, top_p=0.0, min_p=1.0, seed=0)},
        {"sampling": Sampling(logit_bias={0: -100.0, VOCAB_SIZE - 1: 100.0}), "wants_log_probs": True},
        {"guide": Guide("json"), "min_tokens": 4, "end_id": 0, "stop_words": [[1, 2]], "bad_words": [[3]]},
    ],
)
def test_what_is_at_its_bound_is_taken(request_: dict[str, Any]) -> None:
    check(**request_)


@pytest.mark.parametrize(
    ("engine_kind", "request_", "name", "remedy"),
    [
        ("tensorrt_llm", {"lora_name": "french"}, "lora_name", "lora_task_id"),
        ("transformers", {"lora_name": "french"}, "lora_name", "leave it out"),
        ("paced", {"lora_name": "french"}, "lora_name", "leave it out"),
        ("tensorrt_llm", {"wants_log_probs": True}, "return_log_probs", "leave it out"),
        ("tensorrt_llm", {"sampling": Sampling(min_p=0.1)}, "min_p", "leave it out"),
        ("paced", {"sampling": Sampling(logit_bias={1: 1.0})}, "logit_bias_ids", "leave it out"),
        ("vllm", {"sampling": Sampling(length_penalty=0.5)}, "len_penalty", "leave it at 1.0"),
        ("vllm", {"guide": Guide("json"), "min_tokens": 1}, "min_length", "where the output may end"),
        (
            "tensorrt_llm",
            {"guide": Guide("json"), "sampling": Sampling(beam_width=2)},
            "beam_width",
            "leave one of the two out",
        ),
    ],
)
def test_what_a_kind_lacks_is_refused_with_a_remedy(
    engine_kind: str, request_: dict[str, Any], name: str, remedy: str
) -> None:
    with pytest.raises(UnsupportedArgument, match=remedy) as raised:
        check(engine_kind, **request_)
    assert raised.value.facts["name"] == name


def test_a_guide_that_this_engine_has_not_is_refused() -> None:
    ready = Ready("transformers", VOCAB_SIZE, MAX_SEQUENCE_LENGTH, 8, ("json",))
    check_request(Submit(1, [1], 1, guide=Guide("json")), ready)
    with pytest.raises(UnsupportedArgument, match="guided_decoding_guide_type"):
        check_request(Submit(1, [1], 1, guide=Guide("regex", "a")), ready)
    with pytest.raises(
        UnsupportedArgument, match=r"chat_form.*by the kinds transformers, llama_cpp and vllm alone"
    ):
        check_request(Submit(1, [1], 1, guide=Guide("chat_form", "{}")), ready)


def test_a_priority_that_nothing_heeds_is_refused() -> None:
    ready = Ready("vllm", VOCAB_SIZE, MAX_SEQUENCE_LENGTH, 8, takes_priority=True)
    check_request(Submit(1, [1], 1, priority=-3), ready)
    with pytest.raises(UnsupportedArgument, match=r"priority=-3 .*set scheduling_policy: priority"):
        check("vllm", priority=-3)
    with pytest.raises(UnsupportedArgument, match=r"priority=-3 .*leave it out"):
        check("paced", priority=-3)


def test_a_salt_that_nothing_heeds_is_refused_and_not_shown() -> None:
    check("vllm", cache_salt="secret")
    with pytest.raises(UnsupportedArgument, match=r"cache_salt='given' is not supported by the transformers"):
        check("transformers", cache_salt="secret")


def test_an_engine_that_has_names_of_adapters_finds_out_itself() -> None:
    check("vllm", lora_name="german")
    check("tensorrt_llm", sampling=Sampling(beam_width=2, length_penalty=0.5))
