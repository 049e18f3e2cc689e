"""The LLM API's engine over a stand-in of the library: tokens, ends, errors, cancelling, figures."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from errors.wire import ExitReason
from runner.engines.protocol.messages import MIN_LOG_PROB, Sampling, Submit
from runner.engines.server.supervisor import engine_environment
from tests.runner.engines.tensorrt_llm_pytorch.llm_api_engines import (
    KIND,
    MAX_SEQ_LEN,
    VOCAB_SIZE,
    Recorded,
    make_directory,
    running,
    started,
)

GREEDY = Sampling(top_k=1)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    folder = tmp_path_factory.mktemp("llm-api")
    directory = make_directory(folder / "engine", lora_config={"max_loras": 1})
    (directory / "lora" / "pirate").mkdir(parents=True)
    with running(directory, folder / "run", scheduling_policy="priority") as client:
        yield client


def test_it_says_what_it_can_take(engine: Recorded) -> None:
    ready = engine.ready
    assert (ready.engine_kind, ready.vocab_size, ready.max_batch_size) == (KIND, VOCAB_SIZE, 2048)
    assert (ready.max_sequence_length, ready.guide_types, ready.takes_priority) == (MAX_SEQ_LEN, (), True)
    given = engine.llm()
    assert (given["skip_tokenizer_init"], given["max_seq_len"]) == (True, MAX_SEQ_LEN)
    assert given["scheduler_config"] == {"waiting_queue_policy": "priority"}


def test_the_library_reports_no_usage_and_downloads_nothing() -> None:
    environment = engine_environment(KIND)
    assert environment["TRTLLM_NO_USAGE_STATS"] == environment["HF_HUB_OFFLINE"] == "1"


@pytest.mark.parametrize(
    ("request_id", "options", "tokens", "end"),
    [
        (101, {"max_tokens": 5}, [5, 6, 7, 5, 6], "length"),
        (102, {"end_id": 7}, [5, 6, 7], "end"),
        (103, {"end_id": 7, "min_tokens": 4}, [5, 6, 7, 5, 6, 7], "end"),
        (104, {"stop_words": [[9], [6]]}, [5, 6], "stop"),
        (105, {"stop_words": [[6, 7]]}, [5, 6, 7], "stop"),
        (106, {"stop_words": [[6, 7], [7, 5]], "min_tokens": 3}, [5, 6, 7, 5], "stop"),
        (107, {"stop_words": [[6]], "min_tokens": 2}, [5, 6, 7, 5, 6], "stop"),
        (108, {"end_id": 7, "stop_words": [[7]]}, [5, 6, 7], "end"),
        (110, {"max_tokens": 4, "end_id": 0}, [5, 6, 7, 5], "length"),
    ],
)
def test_ends_have_their_reason(
    engine: Recorded, request_id: int, options: dict[str, object], tokens: list[int], end: str
) -> None:
    request = {"max_tokens": 50, "sampling": GREEDY, **options}
    assert engine.answer(Submit(request_id, [5, 6, 7], **request)) == (tokens, end)


def test_a_cancelled_request_ends_when_the_library_has_ended_it(engine: Recorded) -> None:
    engine.send(Submit(1, [5], MAX_SEQ_LEN - 1, GREEDY))
    engine.wait_for_tokens(1)
    engine.cancel(1)
    engine.cancel(1)
    assert engine.wait_for_end(1) == "cancelled"
    assert engine.answer(Submit(2, [6], 2, GREEDY)) == ([6, 6], "length")
    assert engine.ends(1) == ["cancelled"]


def test_each_of_many_requests_ends_once_and_has_its_own_tokens(engine: Recorded) -> None:
    ids = range(1000, 1100)
    for request_id in ids:
        stop = [[request_id % 7, request_id % 5]]
        prompt = [request_id % 7, request_id % 5, request_id % 3]
        engine.send(Submit(request_id, prompt, 100, GREEDY, stop_words=stop if request_id % 2 else []))
        if request_id % 3 == 0:
            engine.cancel(request_id)
    for request_id in ids:
        end, tokens = engine.wait_for_end(request_id), engine.tokens(request_id)
        expected = [request_id % 7, request_id % 5, request_id % 3] * 34
        assert tokens == expected[: len(tokens)]
        assert end in ("cancelled", "stop" if request_id % 2 else "length")
        assert end == "cancelled" or len(tokens) == (2 if request_id % 2 else 100)
    assert [engine.ends(request_id) for request_id in ids if len(engine.ends(request_id)) != 1] == []


def test_log_probabilities_are_those_of_the_tokens_and_of_the_likeliest(engine: Recorded) -> None:
    request = Submit(11, [5, 6], 3, GREEDY, wants_log_probs=True, num_top_log_probs=2)
    assert engine.answer(request) == ([5, 6, 5], "length")
    first = engine.log_probs(11)[0]
    assert first.value == pytest.approx(-0.2877, abs=1e-3)
    assert first.top == [(5, first.value), (6, MIN_LOG_PROB)]
    assert engine.answer(Submit(12, [5], 2, GREEDY, wants_log_probs=True))[1] == "length"
    assert [each.top for each in engine.log_probs(12)] == [[], []]


def test_a_request_takes_what_it_asks_for_to_the_library(tmp_path: Path) -> None:
    directory = make_directory(tmp_path / "engine", enable_lora=True)
    (directory / "lora" / "pirate").mkdir(parents=True)
    sampling = Sampling(
        temperature=0.5, top_k=9, top_p=0.9, min_p=0.1, seed=(1 << 64) - 1, presence_penalty=1.5
    )
    with running(directory, tmp_path / "run", scheduling_policy="priority") as client:
        client.answer(Submit(1, [5], 2, sampling, lora_name="pirate", cache_salt="salt", priority=1))
        client.answer(Submit(2, [5], 2, Sampling(temperature=0.0), priority=-1))
        first, second = client.request(1), client.request(2)
        unknown = client.answer(Submit(3, [5], 2, GREEDY, lora_name="parrot"))[1]
    given = first["sampling_params"]
    assert {name: given[name] for name in ("temperature", "top_k", "top_p", "min_p", "presence_penalty")} == {
        "temperature": 0.5,
        "top_k": 9,
        "top_p": 0.9,
        "min_p": 0.1,
        "presence_penalty": 1.5,
    }
    assert given["seed"] == (1 << 64) - 1
    assert (first["streaming"], first["cache_salt"], first["priority"]) == (True, "salt", 0.25)
    assert first["lora_request"]["lora_path"] == str(directory / "lora" / "pirate")
    assert (second["sampling_params"]["top_k"], second["priority"]) == (1, 0.75)
    assert (second["cache_salt"], second["lora_request"]) == (None, None)
    assert "an adapter of this engine (pirate)" in unknown


def test_what_the_llm_api_lacks_is_refused(engine: Recorded) -> None:
    assert "E1104" in engine.answer(Submit(21, [5], 2, GREEDY, bad_words=[[6, 7]]))[1]
    assert "single tokens alone" in engine.ends(21)[0]
    assert engine.answer(Submit(23, [5] * (MAX_SEQ_LEN - 2), 1, GREEDY))[1] == "length"


def test_a_prompt_beyond_what_one_step_takes_is_refused_unless_prompts_are_taken_in_parts(
    tmp_path: Path,
) -> None:
    directory = make_directory(tmp_path / "engine", max_num_tokens=64)
    with running(directory, tmp_path / "1") as client:
        assert "E1002" in client.answer(Submit(1, [5] * 65, 1, GREEDY))[1]
    with running(directory, tmp_path / "2", enable_chunked_context="true") as client:
        assert client.answer(Submit(1, [5] * 65, 1, GREEDY))[1] == "length"


def test_an_error_of_one_request_fails_it_alone(tmp_path: Path) -> None:
    with running(make_directory(tmp_path / "engine"), tmp_path / "run", "request") as client:
        for request_id in (1, 2):
            tokens, end = client.answer(Submit(request_id, [5, 6], 9, GREEDY))
            assert (tokens, end) == (
                [5],
                "E2401 RequestRefused: TensorRT-LLM did not serve this request: no room",
            )


def test_any_other_error_ends_the_engine(tmp_path: Path) -> None:
    with running(make_directory(tmp_path / "engine"), tmp_path / "run", "engine") as client:
        client.send(Submit(1, [5, 6], 9, GREEDY))
        client.wait_for_close()


@pytest.mark.parametrize(
    ("fault", "arguments", "told"),
    [
        ("start", {}, "RuntimeError: CUDA out of memory."),
        ("", {"max_batch_sise": 3}, "ValueError: LLM got invalid argument: max_batch_sise"),
    ],
)
def test_a_start_that_fails_tells_why(
    tmp_path: Path, fault: str, arguments: dict[str, object], told: str
) -> None:
    directory = make_directory(tmp_path / "engine", **arguments)
    with started(directory, tmp_path / "run", fault) as server:
        server.process.wait()
        reason: ExitReason = server.exit_reason
        assert told in str(reason.read())


def test_figures_of_iterations_become_statistics_and_are_zero_without_requests(tmp_path: Path) -> None:
    with running(make_directory(tmp_path / "engine"), tmp_path / "run") as client:
        client.send(Submit(1, [5], MAX_SEQ_LEN - 1, GREEDY))
        client.wait_for(lambda: client.statistics() and client.statistics()[-1].active == 1)
        busy = client.statistics()[-1]
        client.cancel(1)
        client.wait_for(lambda: client.statistics()[-1].active == 0)
        idle = client.statistics()[-1]
    assert (busy.cache_used, busy.gauges["used_num_blocks"], busy.gauges["iter"]) == (0.01, 1, 7)
    assert (idle.cache_used, idle.gauges["used_num_blocks"], idle.gauges["free_num_blocks"]) == (0, 0, 100)
