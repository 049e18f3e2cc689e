"""The tensor contract of the slot: what a request's tensors mean, and what is refused with which code."""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
import pytest

from errors.requests import InvalidTensor, PromptTooLong, UnsupportedArgument
from runner.engines.protocol.messages import GUIDE_TYPES, Guide, GuideType, Ready, Submit
from runner.slot.request import SlotRequest, parse_row
from runner.slot.rows import batch_size

READY = Ready(engine_kind="paced", vocab_size=50_000, max_sequence_length=100, max_batch_size=8)

FLOATS = {"temperature", "runtime_top_p", "len_penalty", "repetition_penalty", "presence_penalty"}
FLOATS |= {"frequency_penalty", "runtime_top_p_min", "beam_search_diversity_rate", "min_p"}
SEEDS = {"random_seed", "seed"}


def tensors(**values: Any) -> dict[str, Any]:
    """Return a request of one row. Numbers become scalars of the contract's type, other values stay."""
    given: dict[str, Any] = {"input_ids": [5, 6, 7], "request_output_len": 10, **values}
    result: dict[str, Any] = {}
    for name, value in given.items():
        if name == "input_ids" and isinstance(value, list):
            result[name] = np.array([value], np.int32)
        elif isinstance(value, np.ndarray):
            result[name] = value
        elif isinstance(value, str):
            result[name] = np.array([[value.encode()]], object)
        elif value is not None:
            result[name] = np.array([value], dtype_of(name, value))
    return result


def dtype_of(name: str, value: object) -> type:
    if isinstance(value, bool):
        return np.bool_
    return np.float32 if name in FLOATS else np.uint64 if name in SEEDS else np.int32


def parse(ready: Ready = READY, **values: Any) -> SlotRequest:
    return parse_row(tensors(**values), 0, ready, includes_input=False)


def ready(kind: str, guide_types: tuple[GuideType, ...] = ()) -> Ready:
    return Ready(kind, 1000, 100, 8, guide_types)


def test_a_request_of_nothing_but_its_prompt_is_greedy_and_unstreamed() -> None:
    request = parse()
    assert request.submit.input_ids == [5, 6, 7]
    assert request.submit.max_tokens == 10
    assert request.submit.sampling.is_greedy
    assert request.submit.sampling.seed is None
    assert request.submit.min_tokens == 0
    assert request.submit.end_id is None
    assert request.submit.stop_words == []
    assert not request.is_streaming
    assert not request.includes_input


@pytest.mark.parametrize(
    ("given", "is_greedy"),
    [
        ({"runtime_top_k": 0, "runtime_top_p": 0.0}, True),
        ({"runtime_top_k": 1, "runtime_top_p": 0.9}, True),
        ({"runtime_top_k": 40}, False),
        ({"runtime_top_p": 0.9}, False),
        ({"runtime_top_k": 40, "temperature": 0.0}, True),
    ],
)
def test_greedy_is_neither_top_k_nor_top_p_or_top_k_of_one_or_no_temperature(
    given: dict[str, Any], is_greedy: bool
) -> None:
    assert parse(**given).submit.sampling.is_greedy == is_greedy


@pytest.mark.parametrize(
    ("name", "value", "read"),
    [
        ("runtime_top_k", 40, lambda submit: submit.sampling.top_k),
        ("runtime_top_p", 0.5, lambda submit: submit.sampling.top_p),
        ("temperature", 0.5, lambda submit: submit.sampling.temperature),
        ("repetition_penalty", 1.5, lambda submit: submit.sampling.repetition_penalty),
        ("presence_penalty", -0.5, lambda submit: submit.sampling.presence_penalty),
        ("frequency_penalty", 0.25, lambda submit: submit.sampling.frequency_penalty),
        ("random_seed", 0, lambda submit: submit.sampling.seed),
        ("seed", 2**64 - 1, lambda submit: submit.sampling.seed),
        ("min_length", 4, lambda submit: submit.min_tokens),
        ("min_tokens", 4, lambda submit: submit.min_tokens),
        ("end_id", 2, lambda submit: submit.end_id),
        ("pad_id", 3, lambda submit: submit.pad_id),
    ],
)
def test_a_tensor_reaches_the_engine(name: str, value: Any, read: Callable[[Any], Any]) -> None:
    assert read(parse(**{name: value}).submit) == value


@pytest.mark.parametrize("streaming", [True, False, None])
def test_the_tokens_of_a_request_that_is_not_streamed_are_collected(streaming: bool | None) -> None:
    """Until the engine ends it: the slot ends none by itself."""
    assert parse(streaming=streaming).submit.collects_until == (None if streaming else [])


def test_lengths_and_ends_are_those_of_the_prompt_and_its_room() -> None:
    """The earlier of two names wins, and an end id that is no token ends nothing."""
    submit = parse(min_length=3, min_tokens=5, random_seed=1, seed=2).submit
    assert (submit.min_tokens, submit.sampling.seed) == (3, 1)
    assert parse(input_ids=[5, 6, 2, 2], input_lengths=2).submit.input_ids == [5, 6]
    submit = parse(input_ids=[1] * 90, request_output_len=1000, min_length=500).submit
    assert (submit.max_tokens, submit.min_tokens) == (10, 10)
    for end_id in (-1, 50_000):
        assert parse(end_id=end_id).submit.end_id is None


def test_streaming_and_the_inputs_place_in_the_output_are_asked_for() -> None:
    request = parse(streaming=True, exclude_input_in_output=False)
    assert request.is_streaming
    assert request.includes_input
    excluding = parse_row(tensors(exclude_input_in_output=True), 0, READY, includes_input=True)
    assert not excluding.includes_input
    assert parse_row(tensors(), 0, READY, includes_input=True).includes_input


@pytest.mark.parametrize("name", ["stop_words_list", "bad_words_list"])
@pytest.mark.parametrize(
    ("ids", "ends", "words"),
    [
        ([14480, 326, 262, 1171], [1, 4, -1, -1], [[14480], [326, 262, 1171]]),
        ([7, 8, 9], [3, -1, -1], [[7, 8, 9]]),
        ([7, 8, 0, 0], [1, 2, -1, -1], [[7], [8]]),
        ([7, 7], [0, 2], [[7, 7]]),
        ([0, 0], [-1, -1], []),
        ([], [], []),
    ],
)
def test_words_are_flattened_ids_and_cumulative_ends(
    name: str, ids: list[int], ends: list[int], words: list[list[int]]
) -> None:
    submit = parse(**{name: np.array([[ids, ends]], np.int32)}).submit
    assert {"stop_words_list": submit.stop_words, "bad_words_list": submit.bad_words}[name] == words


@pytest.mark.parametrize(
    "end", [lambda at: at, lambda at: 1_000_000, lambda at: -1], ids=["many", "one", "none"]
)
def test_words_of_any_size_are_read_at_once(end: Callable[[Any], Any]) -> None:
    """The slot serves all requests in one thread."""
    tensor = np.ones((1, 2, 1_000_000), np.int32)
    tensor[0, 1] = end(np.arange(1, 1_000_001))
    start_s = time.process_time()
    with suppress(InvalidTensor):
        parse(stop_words_list=tensor)
    assert time.process_time() - start_s < 0.5


def test_each_row_of_a_batch_is_its_own_request() -> None:
    batch = {
        "input_ids": np.array([[1, 2, 0], [3, 4, 5]], np.int32),
        "input_lengths": np.array([[2], [3]], np.int32),
        "request_output_len": np.array([[4], [5]], np.int32),
        "temperature": np.array([[0.5], [2.0]], np.float32),
        "runtime_top_k": np.array([[10], [20]], np.int32),
        "streaming": np.array([[True], [False]]),
    }
    assert batch_size(batch) == 2
    rows = [parse_row(batch, index, READY, includes_input=False) for index in range(2)]
    assert [row.submit.input_ids for row in rows] == [[1, 2], [3, 4, 5]]
    assert [row.submit.max_tokens for row in rows] == [4, 5]
    assert [row.submit.sampling.temperature for row in rows] == [0.5, 2.0]
    assert [row.submit.sampling.top_k for row in rows] == [10, 20]
    assert [row.is_streaming for row in rows] == [True, False]


def test_tensors_of_different_batch_sizes_are_refused() -> None:
    with pytest.raises(InvalidTensor, match="batch dimension"):
        batch_size({"a": np.zeros((2, 1)), "b": np.zeros((3, 1))})


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({"input_ids": None}, "input_ids"),
        ({"input_ids": []}, "input_ids"),
        ({"input_lengths": 0}, "input_ids"),
        ({"input_lengths": -1}, "input_lengths"),
        ({"input_ids": [5, -1]}, "input_ids"),
        ({"input_ids": [50_000]}, "input_ids"),
        ({"request_output_len": None}, "request_output_len"),
        ({"request_output_len": 0}, "request_output_len"),
        ({"runtime_top_k": -1}, "runtime_top_k"),
        ({"runtime_top_p": 1.5}, "runtime_top_p"),
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": np.inf}, "temperature"),
        ({"repetition_penalty": 0.0}, "repetition_penalty"),
        ({"len_penalty": np.inf}, "len_penalty"),
        ({"min_length": -1}, "min_length"),
        ({"min_p": 1.5}, "min_p"),
        ({"num_top_log_probs": 21, "return_log_probs": True}, "num_top_log_probs"),
        ({"num_top_log_probs": 2}, "num_top_log_probs"),
        ({"logit_bias_ids": np.array([[1, 2]], np.int32)}, "logit_bias_values"),
        ({"temperature": np.array([[1.0, 2.0]], np.float32)}, "temperature"),
        ({"stop_words_list": np.array([[1, 2]], np.int32)}, "stop_words_list"),
        ({"stop_words_list": np.array([[[1, 2], [2, 1]]], np.int32)}, "stop_words_list"),
        ({"bad_words_list": np.array([[[1, 2], [1, 3]]], np.int32)}, "bad_words_list"),
        ({"bad_words_list": np.array([[[50_000], [1]]], np.int32)}, "bad_words_list"),
        ({"stop_words_list": np.array([[[-7], [1]]], np.int32)}, "stop_words_list"),
    ],
)
def test_a_wrong_value_is_e1103_with_its_tensor(given: dict[str, Any], name: str) -> None:
    with pytest.raises(InvalidTensor) as raised:
        parse(**given)
    assert raised.value.facts["name"] == name


def test_a_prompt_that_leaves_no_room_is_e1002_with_both_numbers() -> None:
    with pytest.raises(PromptTooLong) as raised:
        parse(input_ids=[1] * 100)
    assert (raised.value.facts["prompt_tokens"], raised.value.facts["max_input_tokens"]) == (100, 99)
    assert raised.value.code.startswith("E1")
    assert parse(input_ids=[1] * 99).submit.max_tokens == 1


@pytest.mark.parametrize(
    "given",
    [
        {"beam_width": 2},
        {"decoder_input_ids": np.array([[7, 8]], np.int32)},
        {"decoder_input_lengths": 2},
        {"len_penalty": 2.0},
        {"logit_bias_ids": np.array([[1]], np.int32), "logit_bias_values": np.array([[0.5]], np.float32)},
        {"return_context_logits": True},
        {"return_kv_cache_reuse_stats": True},
        {"early_stopping": True},
        {"runtime_top_p_min": 0.1},
        {"beam_search_diversity_rate": 0.5},
        {"embedding_bias": np.zeros((1, 4), np.float32)},
        {"prompt_embedding_table": np.zeros((1, 4, 4), np.float16)},
        {"lora_task_id": np.zeros((1, 1), np.uint64)},
    ],
)
def test_what_no_engine_here_honours_is_e1104_and_not_dropped(given: dict[str, Any]) -> None:
    with pytest.raises(UnsupportedArgument, match="paced") as raised:
        parse(**given)
    assert raised.value.facts["name"] == next(iter(given))


def test_log_probabilities_min_p_and_biases_are_told_to_an_engine_that_honours_them() -> None:
    submit = parse(
        ready("transformers"),
        return_log_probs=True,
        num_top_log_probs=3,
        min_p=0.25,
        logit_bias_ids=np.array([[7, 9]], np.int32),
        logit_bias_values=np.array([[1.5, -100]], np.float32),
    ).submit
    assert (submit.wants_log_probs, submit.num_top_log_probs) == (True, 3)
    assert (submit.sampling.min_p, submit.sampling.logit_bias) == (0.25, {7: 1.5, 9: -100.0})


def test_a_beam_search_is_one_request_and_drawn_outputs_have_consecutive_seeds() -> None:
    beams = parse(ready("tensorrt_llm"), beam_width=3, len_penalty=2.0, seed=7)
    assert beams.submits() == [beams.submit]
    assert (beams.num_sequences, beams.submit.sampling.length_penalty) == (3, 2.0)
    with pytest.raises(InvalidTensor, match="beam_search_diversity_rate"):
        parse(ready("tensorrt_llm"), beam_width=2, beam_search_diversity_rate=np.nan)
    drawn = parse(ready("transformers"), num_return_sequences=3, runtime_top_p=0.5, seed=2**64 - 2)
    assert [each.sampling.seed for each in drawn.submits()] == [2**64 - 2, 2**64 - 1, 0]
    unseeded = parse(ready("transformers"), num_return_sequences=2)
    assert unseeded.submits() == [unseeded.submit] * 2


def test_what_asks_for_nothing_special_as_nvidias_preprocessing_does_is_taken() -> None:
    decoder = {"decoder_input_ids": np.array([[2]], np.int32), "decoder_input_lengths": 1}
    plain = {"beam_width": 1, "num_return_sequences": 1, "return_log_probs": False, "early_stopping": False}
    assert parse(pad_id=2, **plain, **decoder, embedding_bias=np.empty((1, 0), np.float32)) == parse(pad_id=2)


def test_nvidias_embedding_bias_is_a_bias_of_tokens_for_other_engines() -> None:
    bias = np.array([[0, 1.5, 0, -2]], np.float32)
    submit = parse(ready("transformers"), embedding_bias=bias).submit
    assert (submit.sampling.logit_bias, submit.tensors) == ({1: 1.5, 3: -2.0}, {})
    submit = parse(ready("tensorrt_llm"), embedding_bias=bias).submit
    assert (submit.sampling.logit_bias, list(submit.tensors)) == ({}, ["embedding_bias"])


def guided(
    guide_type: str | None, guide: str | None, kind: str = "transformers", *, guides: bool = True, **more: Any
) -> Submit:
    texts = {"guided_decoding_guide_type": guide_type, "guided_decoding_guide": guide}
    return parse(ready(kind, GUIDE_TYPES if guides else ()), **texts, **more).submit


@pytest.mark.parametrize(
    ("guide_type", "guide"),
    [("json", None), ("json_schema", "{}"), ("regex", "é+"), ("ebnf_grammar", "root ::=")],
)
def test_a_guide_is_taken_as_it_is(guide_type: GuideType, guide: str | None) -> None:
    assert guided(guide_type, guide).guide == Guide(guide_type, guide or "")
    assert guided(None, None).guide is None
    assert guided("", "").guide is None


@pytest.mark.parametrize(
    ("guide_type", "guide", "message"),
    [
        ("yaml", "a", "guided_decoding_guide_type must be one of json, json_schema, regex, ebnf_grammar"),
        (None, "a", "guided_decoding_guide_type must be one of"),
        ("chat_form", "{}", "guided_decoding_guide_type must be one of json, json_schema, regex, ebnf"),
        ("regex", None, "guided_decoding_guide must be the text of the regex"),
        ("json", "{}", "guided_decoding_guide must be left out"),
    ],
)
def test_half_a_guide_is_e1103(guide_type: str | None, guide: str | None, message: str) -> None:
    with pytest.raises(InvalidTensor, match=message):
        guided(guide_type, guide)


@pytest.mark.parametrize(
    ("kind", "remedy"),
    [("paced", "leave it out"), ("tensorrt_llm", "set guided_decoding_backend"), ("vllm", "tokenizer.json")],
)
def test_an_engine_that_follows_no_guides_refuses_with_what_helps(kind: str, remedy: str) -> None:
    with pytest.raises(UnsupportedArgument, match=remedy):
        guided("regex", "a", kind, guides=False)


def test_what_does_not_go_with_a_guide_is_refused() -> None:
    assert guided("regex", "a+", min_length=3).min_tokens == 3
    for kind, name in (
        *((each, "min_length") for each in ("vllm", "tensorrt_llm")),
        ("tensorrt_llm", "beam_width"),
    ):
        with pytest.raises(UnsupportedArgument, match="guide"):
            guided("regex", "a+", kind, **{name: 3})
