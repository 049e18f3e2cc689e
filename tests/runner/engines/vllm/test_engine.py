"""The vLLM adapter against a stand-in of vLLM's inner interface, in a real worker."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from runner.engines.worker.process import EngineProcess

from errors.coded_error import CodedError
from runner.engines.protocol.messages import Cancel, Sampling, Statistics, Submit
from tests.runner.engines.listening import Listening
from tests.runner.engines.vllm.vllm_engines import make_python, make_vllm_directory, running

GREEDY = Sampling(top_k=1)


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_python(tmp_path_factory.mktemp("python") / "python", sys.executable)


@pytest.fixture(scope="module")
def engine_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = make_vllm_directory(tmp_path_factory.mktemp("engine"), max_num_seqs=64, max_model_len=2048)
    (folder / "lora" / "french").mkdir(parents=True)
    return folder


@pytest.fixture(scope="module")
def listening() -> Listening:
    return Listening()


@pytest.fixture(scope="module")
def engine(engine_dir: Path, python: str, listening: Listening) -> Iterator[EngineProcess]:
    with running(engine_dir, python, listening) as process:
        yield process


def ended(engine: EngineProcess, listening: Listening, request: Submit) -> tuple[list[int], str]:
    engine.send(request)
    listening.wait_for_end(request.request_id)
    (end,) = listening.ends(request.request_id)
    return listening.tokens(request.request_id), end if isinstance(end, str) else str(end.restore())


def test_a_request_ends_at_its_length(engine: EngineProcess, listening: Listening) -> None:
    assert ended(engine, listening, Submit(1, [7], 5, GREEDY)) == ([8, 9, 10, 11, 12], "length")


def test_the_end_id_ends_and_is_part_of_the_output(engine: EngineProcess, listening: Listening) -> None:
    assert ended(engine, listening, Submit(2, [7], 50, GREEDY, end_id=10)) == ([8, 9, 10], "end")


@pytest.mark.parametrize(("number", "word"), [(3, [10]), (4, [9, 10])])
def test_a_stop_word_ends_and_is_part_of_the_output(
    engine: EngineProcess, listening: Listening, number: int, word: list[int]
) -> None:
    request = Submit(number, [7], 500, GREEDY, end_id=20, stop_words=[word])
    assert ended(engine, listening, request) == ([8, 9, 10], "stop")


def test_a_stop_word_that_is_the_end_id_is_the_end(engine: EngineProcess, listening: Listening) -> None:
    assert ended(engine, listening, Submit(5, [7], 50, GREEDY, end_id=9, stop_words=[[9]])) == ([8, 9], "end")


def test_a_stop_word_that_begins_in_the_prompt_does_not_count(
    engine: EngineProcess, listening: Listening
) -> None:
    assert ended(engine, listening, Submit(6, [7], 3, GREEDY, stop_words=[[7, 8]]))[1] == "length"


@pytest.mark.parametrize(("number", "word"), [(7, [9]), (8, [8, 9])])
def test_nothing_ends_before_min_tokens(
    engine: EngineProcess, listening: Listening, number: int, word: list[int]
) -> None:
    request = Submit(number, [7], 5, GREEDY, min_tokens=4, stop_words=[word])
    assert ended(engine, listening, request) == ([8, 9, 10, 11, 12], "length")


def test_bad_words_are_vllms(engine: EngineProcess, listening: Listening) -> None:
    assert ended(engine, listening, Submit(9, [7], 3, GREEDY, bad_words=[[9]]))[0] == [8, 10, 11]


def test_log_probs_come_for_who_wants_them(engine: EngineProcess, listening: Listening) -> None:
    engine.send(Submit(12, [7], 4, GREEDY))
    wanting = Submit(11, [7], 50, GREEDY, stop_words=[[9, 10]], wants_log_probs=True)
    assert ended(engine, listening, wanting)[0] == [8, 9, 10]
    assert [each.value for each in listening.log_probs(11)] == [-0.008, -0.009, -0.01]
    assert listening.log_probs(12) == []


def test_an_adapter_is_found_by_name(engine: EngineProcess, listening: Listening) -> None:
    assert ended(engine, listening, Submit(10, [7], 1, GREEDY, lora_name="french"))[1] == "length"


@pytest.mark.parametrize(
    ("number", "request_", "told"),
    [
        (
            20,
            Submit(20, [7], 5, Sampling(temperature=2.5)),
            "E1103 InvalidTensor: temperature must be at most 2",
        ),
        (
            21,
            Submit(21, [7], 5, Sampling(presence_penalty=-3.0)),
            "presence_penalty must be from -2 to 2, but is -3.0",
        ),
        (22, Submit(22, [1000], 5), "input_ids must be token ids from 0 to 999, but is 1000"),
        (23, Submit(23, [7] * 2048, 5), "E1002 PromptTooLong"),
        (24, Submit(24, [7], 5, GREEDY, lora_name="german"), "an adapter of this engine (french)"),
        (25, Submit(25, [7], 5, GREEDY, bad_words=[[1]] * 129), "bad_words_list must be at most 128 words"),
        (
            26,
            Submit(26, [7], 5, GREEDY, bad_words=[[1] * 1025]),
            "bad_words_list must be at most 1024 tokens",
        ),
        (
            27,
            Submit(27, [7], 5, GREEDY, stop_words=[[n] for n in range(129)]),
            "at most 128 words of one token",
        ),
        (28, Submit(28, [667], 5, GREEDY), "E2204 VllmRequestFailed: vLLM ended this request with 'error'"),
    ],
)
def test_what_can_not_run_fails_alone(
    engine: EngineProcess, listening: Listening, number: int, request_: Submit, told: str
) -> None:
    other = Submit(number + 100, [1], 20, GREEDY)
    engine.send(other)
    assert told in ended(engine, listening, request_)[1]
    listening.wait_for_end(other.request_id)
    assert listening.tokens(other.request_id) == list(range(2, 22))


def test_a_cancelled_request_ends_once_and_holds_nothing(engine: EngineProcess, listening: Listening) -> None:
    engine.send(Submit(200, [7], 2000, GREEDY))
    listening.wait_for(lambda: len(listening.tokens(200)) > 5)
    listening.wait_for(
        lambda: any(isinstance(each, Statistics) and each.active for each in listening.messages)
    )
    engine.send(Cancel(200))
    engine.send(Cancel(200))
    listening.wait_for_end(200)
    assert listening.ends(200) == ["cancelled"]
    listening.wait_for(lambda: listening.messages[-1] == Statistics(active=0, queued=0, cache_used=0.0))


def test_a_cancelled_request_among_others_leaves_them_alone(
    engine: EngineProcess, listening: Listening
) -> None:
    numbers = range(300, 364)
    for number in numbers:
        engine.send(Submit(number, [number], 200, GREEDY))
    for number in numbers[::2]:
        engine.send(Cancel(number))
    for number in numbers:
        listening.wait_for_end(number)
    assert {tuple(listening.ends(number)) for number in numbers[::2]} == {("cancelled",)}
    for number in numbers[1::2]:
        assert listening.tokens(number) == [(number + 1 + step) % 1000 for step in range(200)]


def test_more_requests_than_the_batch_holds_wait(engine: EngineProcess, listening: Listening) -> None:
    numbers = range(400, 500)
    for number in numbers:
        engine.send(Submit(number, [1], 1100, GREEDY))
    listening.wait_for(
        lambda: any(isinstance(each, Statistics) and each.queued == 36 for each in listening.messages)
    )
    for number in numbers:
        engine.send(Cancel(number))
        listening.wait_for_end(number)


def test_a_core_that_dies_is_told_and_started_again(engine_dir: Path, python: str) -> None:
    listening = Listening()
    with running(engine_dir, python, listening) as process:
        process.send(Submit(1, [7], 2000, GREEDY))
        process.send(Submit(2, [666], 5, GREEDY))
        listening.wait_for(lambda: listening.losses)
        assert listening.losses[0].code == "E2205"
        assert "CUDA out of memory" in str(listening.losses[0])


def test_why_the_core_does_not_start_is_told_with_what_helps(tmp_path: Path, python: str) -> None:
    folder = make_vllm_directory(tmp_path / "engine", vocab_size=999)
    text = refusal(folder, python)
    assert text.startswith("E2203 VllmStartFailed")
    assert "No available memory" in text
    assert "tensor_parallel_size" in text
    assert "See root cause above" not in text


def test_arguments_that_vllm_refuses_are_told(tmp_path: Path, python: str) -> None:
    text = refusal(make_vllm_directory(tmp_path / "engine", max_model_len=5000), python)
    assert text.startswith("E2202 VllmArgumentsRefused")
    assert "(5000) is greater than 4096" in text


def test_without_vllm_the_engine_says_where_to_put_it(engine_dir: Path) -> None:
    text = refusal(engine_dir, sys.executable)
    assert text.startswith("E2201 VllmMissing")
    assert "COG_TRITON_ENGINE_PYTHON" in text


def refusal(directory: Path, python: str, **options: str) -> str:
    with pytest.raises(CodedError) as caught, running(directory, python, Listening(), **options):
        pass
    return str(caught.value)


def test_an_option_that_is_none_is_named(engine_dir: Path, python: str) -> None:
    text = refusal(engine_dir, python, gpu_memory_utilization="1.5")
    assert text.endswith("gpu_memory_utilization must be a number above 0 and at most 1, but is '1.5'.")
    assert text.startswith("E1006")


def test_the_slots_options_win_over_the_engines_arguments(engine_dir: Path, python: str) -> None:
    listening = Listening()
    with running(engine_dir, python, listening, max_batch_size="3") as process:
        for number in range(5):
            process.send(Submit(number, [1], 1500, GREEDY))
        listening.wait_for(
            lambda: any(
                isinstance(each, Statistics) and (each.active, each.queued) == (3, 2)
                for each in listening.messages
            )
        )
