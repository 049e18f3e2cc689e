"""The vLLM adapter against a stand-in of vLLM's inner interface, in a real engine server."""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.engines.protocol.messages import Finished, Sampling, Submit
from runner.engines.vllm.interface import PINNED_VERSION
from tests.engine.pooling_files import write_pooling
from tests.runner.engines.listening import Listening
from tests.runner.engines.vllm.vllm_engines import LIBRARY, make_python, make_vllm_directory, running, started

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
def engine(engine_dir: Path, python: str) -> Iterator[Listening]:
    with running(engine_dir, python) as client:
        yield client


ENDS: list[tuple[dict[str, Any], list[int], str]] = [
    ({"max_tokens": 5}, [8, 9, 10, 11, 12], "length"),
    ({"end_id": 10}, [8, 9, 10], "end"),
    ({"end_id": 20, "stop_words": [[10]]}, [8, 9, 10], "stop"),
    ({"end_id": 20, "stop_words": [[9, 10]]}, [8, 9, 10], "stop"),
    ({"end_id": 9, "stop_words": [[9]]}, [8, 9], "end"),
    ({"max_tokens": 3, "stop_words": [[7, 8]]}, [8, 9, 10], "length"),  # It begins in the prompt.
    ({"max_tokens": 5, "min_tokens": 4, "stop_words": [[9]]}, [8, 9, 10, 11, 12], "length"),
    ({"max_tokens": 5, "min_tokens": 4, "stop_words": [[8, 9]]}, [8, 9, 10, 11, 12], "length"),
    ({"max_tokens": 3, "bad_words": [[9]]}, [8, 10, 11], "length"),
    ({"max_tokens": 1, "lora_name": "french"}, [8], "length"),
]


def test_a_request_ends_at_its_length_its_end_id_or_a_stop_word(engine: Listening) -> None:
    for number, (fields, tokens, reason) in enumerate(ENDS):
        request = Submit(number, [7], **{"max_tokens": 500, "sampling": GREEDY, **fields})
        assert engine.answer(request) == (tokens, reason), fields


def test_log_probs_come_for_who_wants_them(engine: Listening) -> None:
    engine.send(Submit(12, [7], 4, GREEDY))
    wanting = Submit(11, [7], 50, GREEDY, stop_words=[[9, 10]], wants_log_probs=True)
    assert engine.answer(wanting)[0] == [8, 9, 10]
    assert [(each.value, each.top) for each in engine.log_probs(11)] == [
        (-0.008, []),
        (-0.009, []),
        (-0.01, []),
    ]
    assert engine.log_probs(12) == []
    assert engine.answer(Submit(13, [7], 1, GREEDY, wants_log_probs=True, num_top_log_probs=2))[0] == [8]
    assert [each.top for each in engine.log_probs(13)] == [[(8, -0.008), (1, -0.001)]]


def test_tokens_of_the_prompt_that_vllm_had_already_are_told_once(engine: Listening) -> None:
    prompt = [*range(1, 41)]
    for number, cached in ((30, 0), (31, 32)):
        assert engine.answer(Submit(number, prompt, 3, GREEDY)) == ([41, 42, 43], "length")
        assert engine.cached(number) == [cached]


def test_a_prefix_is_shared_only_by_requests_with_the_same_salt(engine: Listening) -> None:
    prompt = [*range(100, 140)]
    for number, salt, cached in ((32, "a", 0), (33, None, 0), (34, "b", 0), (35, "a", 32), (36, None, 32)):
        engine.answer(Submit(number, prompt, 1, GREEDY, cache_salt=salt))
        assert engine.cached(number) == [cached]


@pytest.mark.slow
def test_a_priority_is_heeded_where_the_policy_is_so(
    engine: Listening, engine_dir: Path, python: str
) -> None:
    assert "set scheduling_policy: priority" in engine.answer(Submit(37, [7], 1, GREEDY, priority=1))[1]
    options = {"max_batch_size": "1", "scheduling_policy": "priority"}
    with running(engine_dir, python, **options) as client:
        client.send(Submit(1, [7], 2000, GREEDY))
        client.wait_for_tokens(1)
        client.send(Submit(2, [7], 1, GREEDY), Submit(3, [7], 1, GREEDY, priority=-1))
        client.cancel(1)
        client.wait_for_end(2)
        ends = [each.request_id for each in client.messages if isinstance(each, Finished)]
        assert ends.index(3) < ends.index(2)


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (Submit(20, [7], 5, Sampling(temperature=2.5)), "E1103 InvalidTensor: temperature must be at most 2"),
        (
            Submit(21, [7], 5, Sampling(presence_penalty=-3.0)),
            "presence_penalty must be from -2 to 2, but is -3.0",
        ),
        (Submit(24, [7], 5, GREEDY, lora_name="german"), "an adapter of this engine (french)"),
        (Submit(25, [7], 5, GREEDY, bad_words=[[1]] * 129), "bad_words_list must be at most 128 words"),
        (Submit(26, [7], 5, GREEDY, bad_words=[[1] * 1025]), "bad_words_list must be at most 1024 tokens"),
        (
            Submit(27, [7], 5, GREEDY, end_id=500, stop_words=[[n] for n in range(128)]),
            "at most 128 words of one token",
        ),
        (
            Submit(28, [667], 5, GREEDY),
            "E2204 VllmRequestFailed: vLLM ended this request with 'Invalid structured outputs'",
        ),
        (Submit(29, [665], 5, GREEDY), "E2114 EngineAsleep"),
    ],
)
def test_what_can_not_run_fails_alone(engine: Listening, request_: Submit, told: str) -> None:
    other = Submit(request_.request_id + 100, [1], 20, GREEDY)
    engine.send(other)
    assert told in engine.answer(request_)[1]
    engine.wait_for_end(other.request_id)
    assert engine.tokens(other.request_id) == list(range(2, 22))


@pytest.mark.slow
def test_a_cancelled_request_ends_once_and_holds_nothing(engine: Listening) -> None:
    engine.send(Submit(200, [7], 2000, GREEDY))
    engine.wait_for(lambda: len(engine.tokens(200)) > 5)
    engine.wait_for(lambda: any(each.active for each in engine.statistics()))
    engine.cancel(200)
    engine.cancel(200)
    engine.wait_for_end(200)
    assert engine.ends(200) == ["cancelled"]
    engine.wait_for(lambda: engine.statistics()[-1].active == 0)
    assert engine.statistics()[-1].cache_used == 0.0


def test_a_cancelled_request_among_others_leaves_them_alone(engine: Listening) -> None:
    numbers = range(300, 364)
    for number in numbers:
        engine.send(Submit(number, [number], 200, GREEDY))
    for number in numbers[::2]:
        engine.cancel(number)
    for number in numbers:
        engine.wait_for_end(number)
    assert {tuple(engine.ends(number)) for number in numbers[::2]} == {("cancelled",)}
    for number in numbers[1::2]:
        assert engine.tokens(number) == [(number + 1 + step) % 1000 for step in range(200)]


@pytest.mark.parametrize(
    ("token", "told"),
    [
        (666, "CUDA out of memory"),
        # vLLM only marks its client as dead: what waits for its outputs would wait for ever.
        pytest.param(668, "killed", marks=pytest.mark.slow),
    ],
)
def test_a_core_that_dies_or_is_killed_ends_the_engine_server_with_its_error(
    engine_dir: Path, python: str, token: int, told: str
) -> None:
    with started(engine_dir, python) as server, Listening(server) as client:
        client.send(Submit(1, [7], 2000, GREEDY), Submit(2, [token], 5, GREEDY))
        ends = [client.wait_for_end(number) for number in (1, 2)]
        assert server.exit_code() == 70
        assert ends == [str(server.exit_reason.read())] * 2
        assert ends[0].startswith("E2205")
        assert told in ends[0]


@pytest.mark.parametrize(
    ("arguments", "options", "has_vllm", "told"),
    [
        ({"vocab_size": 999}, {}, True, "E2203 VllmStartFailed: .*No available memory.*tensor_parallel_size"),
        ({"max_model_len": 5000}, {}, True, r"E2202 VllmArgumentsRefused: .*\(5000\) is greater than 4096"),
        ({}, {}, False, "E2201 VllmMissing: .*COG_TRITON_ENGINE_PYTHON"),
        (
            {},
            {"gpu_memory_utilization": "1.5"},
            True,
            "E1006 .*gpu_memory_utilization must be a number above 0 and at most 1, but is '1.5'.$",
        ),
    ],
)
def test_why_the_engine_does_not_start_is_told_with_what_helps(
    tmp_path: Path, python: str, arguments: dict[str, int], options: dict[str, str], has_vllm: bool, told: str
) -> None:
    folder = make_vllm_directory(tmp_path / "engine", **arguments)
    with started(folder, python if has_vllm else sys.executable, **options) as server:
        assert server.exit_code() == 1
        assert re.match(told, text := str(server.exit_reason.read())), text
        assert "See root cause above" not in text


def test_all_that_another_vllm_lacks_is_told_at_once(engine_dir: Path, tmp_path: Path) -> None:
    library = tmp_path / "library"
    shutil.copytree(LIBRARY, library)
    client = library / "vllm" / "v1" / "engine" / "core_client.py"
    client.write_text(client.read_text().replace("self, request_ids: ", "self, ids: "))
    lora = library / "vllm" / "lora" / "request.py"
    lora.write_text(lora.read_text().replace("lora_name: str", "lora_name: str\n    new: str"))
    (library / "vllm" / "usage" / "usage_lib.py").unlink()
    with started(engine_dir, make_python(tmp_path / "python", sys.executable, library)) as server:
        assert server.exit_code() == 1
        assert str(server.exit_reason.read()) == (
            "E1008 MissingRequirement: vllm.lora.request.LoRARequest() without new, "
            "vllm.usage.usage_lib.UsageContext, "
            "vllm.v1.engine.core_client.SyncMPClient.abort_requests(request_ids) "
            f"in vLLM {PINNED_VERSION} was not found; install vllm=={PINNED_VERSION}, which is supported."
        )


@pytest.mark.parametrize(
    ("broken", "told"),
    [
        ("raise OSError('libcuda.so.1:\\n  no such file')", "OSError: libcuda.so.1: no such file"),
        ("import sys\nsys.no_such_thing", "AttributeError: module 'sys' has no attribute 'no_such_thing'"),
        ("import vllm._C", "ModuleNotFoundError: No module named 'vllm._C'"),
    ],
)
def test_what_importing_a_broken_vllm_raises_is_told(
    engine_dir: Path, tmp_path: Path, broken: str, told: str
) -> None:
    library = tmp_path / "library"
    shutil.copytree(LIBRARY, library)
    (library / "vllm" / "envs.py").write_text(broken)
    with started(engine_dir, make_python(tmp_path / "python", sys.executable, library)) as server:
        assert server.exit_code() == 1
        error = str(server.exit_reason.read())
        assert error.startswith("E2201 VllmMissing: vLLM can't be imported by ")
        assert f" ({told}); install requirements/vllm.txt there, or name " in error


@pytest.mark.slow
def test_the_servers_options_win_over_the_engines_arguments(engine_dir: Path, python: str) -> None:
    with running(engine_dir, python, max_batch_size="3") as client:
        client.send(*(Submit(number, [1], 1500, GREEDY) for number in range(5)))
        client.wait_for(lambda: any((each.active, each.queued) == (3, 2) for each in client.statistics()))


@pytest.fixture(scope="module")
def embedding(tmp_path_factory: pytest.TempPathFactory, python: str) -> Iterator[Listening]:
    folder = make_vllm_directory(tmp_path_factory.mktemp("embedding"), max_num_seqs=4)
    with running(write_pooling(folder, "lasttoken", max_tokens=512), python) as client:
        yield client


def test_an_embedding_model_answers_with_vectors(embedding: Listening) -> None:
    assert embedding.ready.is_embedding
    assert embedding.ready.max_sequence_length == 512
    numbers = range(1, 21)
    embedding.send(*(Submit(number, [number, 7], 0, embeds=True) for number in numbers))
    for number in numbers:
        assert embedding.wait_for_end(number) == "end"
        vector = np.frombuffer(embedding.finished(number).embedding or b"", "<f4")
        expected = np.array([number, 7, (number + 7) / 2])
        np.testing.assert_allclose(vector, expected / np.linalg.norm(expected), rtol=1e-6)


def test_a_model_does_one_of_both(embedding: Listening, engine: Listening) -> None:
    assert "E1011 WrongTask" in embedding.answer(Submit(100, [7], 5))[1]
    assert "E1011 WrongTask" in engine.answer(Submit(900, [7], 0, embeds=True))[1]
    assert "E1002 PromptTooLong" in embedding.answer(Submit(101, [7] * 513, 0, embeds=True))[1]
    assert embedding.answer(Submit(102, [7] * 512, 0, embeds=True))[1] == "end"


@pytest.mark.slow
def test_draft_tokens_that_were_accepted_and_rejected_are_counted(tmp_path: Path, python: str) -> None:
    drafting = {"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}
    with running(make_vllm_directory(tmp_path / "engine", **drafting), python) as client:
        assert client.answer(Submit(1, [7], 6, GREEDY)) == ([8, 9, 10, 11, 12, 13], "length")
        assert client.finished(1).drafted == (3, 3)
        # vLLM refuses these beside drafts in its front end alone, which is not there.
        told = "leave it out, or build the engine without speculative_config"
        assert (
            f"min_p=0.5 is not supported by the vllm engine; {told}"
            in client.answer(Submit(2, [7], 6, Sampling(min_p=0.5)))[1]
        )
        assert (
            f"logit_bias_ids=[9] is not supported by the vllm engine; {told}"
            in client.answer(Submit(3, [7], 6, Sampling(top_k=1, logit_bias={9: 1.0})))[1]
        )
        assert client.answer(Submit(4, [7], 2, Sampling(top_k=1, min_p=0.5))) == ([8, 9], "length")
        client.wait_for(client.statistics)
