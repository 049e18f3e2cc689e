"""The tensorrt_llm engine over a stand-in of the bindings: tokens, ends, errors, cancelling, figures."""

import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from errors.engines import EngineStartFailed, QueueFull, RequestRefused
from errors.requests import InvalidTensor, PromptTooLong, UnsupportedArgument
from runner.engines.protocol.messages import GUIDE_TYPES, Guide, Sampling, Submit
from runner.engines.tensorrt_llm import adapter
from runner.engines.tensorrt_llm.adapter import TensorrtLlmEngine, load
from runner.engines.tensorrt_llm.requests import coded, executor_request, is_device_lost, sentence
from tests.runner.engines.recording_sink import RecordingSink
from tests.runner.engines.tensorrt_llm.bindings import bindings
from tests.runner.paced_engine import make_tokenizer
from tests.runner.tensorrt_llm_engine import MAX_BATCH_SIZE, write_engine

trtllm = bindings()
GREEDY = Sampling(top_k=1)
Load = Callable[..., tuple[TensorrtLlmEngine, RecordingSink]]


@pytest.fixture
def load_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Load]:
    monkeypatch.setattr(adapter, "_AWAIT", timedelta(milliseconds=5))  # It is waited for at the end of each.
    engines: list[TensorrtLlmEngine] = []

    def make(**options: str) -> tuple[TensorrtLlmEngine, RecordingSink]:
        sink = RecordingSink()
        engines.append(load(write_engine(tmp_path / "engine", vocab_size=320), sink, options))
        return engines[-1], sink

    yield make
    for engine in engines:
        engine.close()


def test_it_says_what_it_can_take(load_engine: Load) -> None:
    ready = load_engine()[0].ready
    assert (ready.engine_kind, ready.vocab_size) == ("tensorrt_llm", 320)
    assert (ready.max_sequence_length, ready.max_batch_size) == (512, MAX_BATCH_SIZE)


def test_tokens_come_as_they_are_made_and_those_of_a_step_together(load_engine: Load) -> None:
    engine, sink = load_engine()
    for request_id in (1, 2, 3):
        engine.submit(Submit(request_id, [10 * request_id, 1], 100, GREEDY))
    assert [sink.end_of(request_id) for request_id in (1, 2, 3)] == ["length"] * 3
    for request_id in (1, 2, 3):
        assert sink.of(request_id) == [10 * request_id, 1] * 50
    assert len(sink.steps) > 2
    counts, leads = Counter[int](), set()
    for step in sink.steps:  # Where the machine is busy, several steps at once.
        counts.update(request_id for request_id, _ in step)
        if all(0 < counts[request_id] < 100 for request_id in (1, 2, 3)):
            leads.add((counts[1] - counts[2], counts[2] - counts[3]))
    assert len(leads) == 1, "a step's tokens came apart"


def test_ends_have_their_reason(load_engine: Load) -> None:
    engine, sink = load_engine()
    engine.submit(Submit(1, [5, 6, 7], 20, GREEDY, end_id=7))
    engine.submit(Submit(2, [5, 6, 7], 20, GREEDY, stop_words=[[9], [6, 7]]))
    engine.submit(Submit(3, [5, 6, 7], 4, GREEDY, end_id=7, min_tokens=3, bad_words=[[6]]))
    assert [sink.end_of(each) for each in (1, 2, 3)] == ["end", "stop", "length"]
    assert sink.of(1) == [5, 6]  # TensorRT-LLM's output is without the end token.
    assert sink.of(2) == [5, 6, 7]
    assert sink.of(3) == [5, 8, 8, 5]


def test_tokens_of_reused_blocks_are_told_once_where_blocks_are_reused(load_engine: Load) -> None:
    prompt = [*range(1, 151)]
    for options, hits in (({"enable_kv_cache_reuse": "true"}, [(1, 0), (2, 128)]), ({}, [])):
        engine, sink = load_engine(**options)
        for number in (1, 2):
            engine.submit(Submit(number, prompt, 3, GREEDY))
            assert sink.end_of(number) == "length"
        assert sink.cache_hits == hits


def test_a_cancelled_request_ends_cancelled_and_is_held_no_more(load_engine: Load) -> None:
    engine, sink = load_engine()
    engine.submit(Submit(1, [5], 500, GREEDY))
    sink.wait_for(lambda: sink.of(1))
    engine.cancel(1)
    assert sink.end_of(1) == "cancelled"
    count = len(sink.of(1))
    engine.cancel(1)
    engine.cancel(99)
    engine.submit(Submit(2, [6], 3, GREEDY))
    assert sink.end_of(2) == "length"
    assert len(sink.of(1)) == count < 500
    assert not sink.breaks


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (Submit(1, [5] * 512, 1, GREEDY), PromptTooLong),
        (Submit(1, [5], 1, Sampling(beam_width=2)), UnsupportedArgument),
        (Submit(1, [5], 1, Sampling(top_p_min=2.0)), InvalidTensor),
        (Submit(1, [5], 1, Sampling(top_p_decay=0.0)), InvalidTensor),
        (Submit(1, [5], 1, Sampling(top_p_reset_ids=320)), InvalidTensor),
        (Submit(1, [5], 1, Sampling(repetition_penalty=-1.0)), RequestRefused),
        (Submit(1, [5], 0, GREEDY), RequestRefused),
        (Submit(1, [], 1, GREEDY), RequestRefused),
        (Submit(1, [5], 1, GREEDY, lora_task_id=4), RequestRefused),
    ],
)
def test_a_wrong_request_fails_alone(load_engine: Load, request_: Submit, error: type[Exception]) -> None:
    engine, sink = load_engine()
    engine.submit(request_)
    engine.submit(Submit(2, [6], 3, GREEDY))
    assert type(sink.end_of(1)) is error
    assert "\n" not in str(sink.errors[1])
    assert sink.end_of(2) == "length"
    assert not sink.breaks


@pytest.mark.slow
def test_a_full_queue_refuses_with_its_size_and_serves_the_others(load_engine: Load) -> None:
    engine, sink = load_engine(max_queue_size="2", max_batch_size="1")
    for request_id in range(1, 9):
        engine.submit(Submit(request_id, [5], 100, GREEDY))
    ends = [sink.end_of(request_id) for request_id in range(1, 9)]
    refused = [end for end in ends if end != "length"]
    assert 5 <= len(refused) <= 6
    assert {type(end) for end in refused} == {QueueFull}
    assert "2 requests wait" in str(refused[0])
    engine.submit(Submit(9, [5], 3, GREEDY))
    assert sink.end_of(9) == "length"


def test_a_lost_gpu_ends_the_engine(load_engine: Load) -> None:
    engine, sink = load_engine()
    engine.submit(Submit(1, [5, 400], 3, GREEDY))
    sink.wait_for(lambda: sink.breaks)
    assert "illegal memory access" in str(sink.breaks[0])
    assert "illegal memory access" in str(sink.end_of(1))


def test_a_beam_search_gives_all_its_beams_at_its_end(load_engine: Load) -> None:
    engine, sink = load_engine(max_beam_width="2")
    engine.submit(Submit(1, [5, 6], 4, Sampling(beam_width=2, length_penalty=0.5, early_stopping=True)))
    assert sink.end_of(1) == "length"
    assert [len(each) for each in sink.sequences[1]] == [4, 4]
    assert sink.of(1) == []


def test_figures_follow_the_iterations_and_fall_to_zero(load_engine: Load) -> None:
    engine, sink = load_engine()
    for request_id in range(1, 8):
        engine.submit(Submit(request_id, [5] * 100, 100, GREEDY))
    sink.wait_for(lambda: len(sink.of(1)) > 3)
    busy = engine.statistics()
    assert (busy.active, busy.queued) == (MAX_BATCH_SIZE, 7 - MAX_BATCH_SIZE)
    assert busy.cache_used is not None
    assert 0 < busy.cache_used <= 1
    assert busy.gauges["used_num_blocks"] == 2 * MAX_BATCH_SIZE
    for request_id in range(1, 8):
        engine.cancel(request_id)
        assert sink.end_of(request_id) == "cancelled"
    idle = engine.statistics()
    assert (idle.active, idle.queued, idle.cache_used) == (0, 0, 0.0)
    assert idle.gauges["free_num_blocks"] == idle.gauges["max_num_blocks"] > 0


def test_it_closes_at_once_with_requests_running(tmp_path: Path) -> None:
    sink = RecordingSink()
    engine = load(write_engine(tmp_path, vocab_size=320), sink, {})
    engine.submit(Submit(1, [5], 500, GREEDY))
    sink.wait_for(lambda: sink.of(1))
    start_s = time.monotonic()
    engine.close()
    assert time.monotonic() - start_s < 120
    assert not sink.breaks


def test_an_engine_that_does_not_load_is_e2108_in_one_sentence(tmp_path: Path) -> None:
    folder = write_engine(tmp_path, vocab_size=320, broken_rank=0)
    with pytest.raises(EngineStartFailed, match="CUDA runtime error in cudaMalloc: out of memory") as raised:
        load(folder, RecordingSink(), {})
    assert "[TensorRT-LLM]" not in str(raised.value)


@pytest.mark.parametrize(
    ("sampling", "expected"),
    [
        (Sampling(top_k=1, temperature=0.3), {"top_k": 1}),
        (Sampling(temperature=0.0, top_p=0.5), {"top_k": 1}),
        (Sampling(seed=1), {"top_p": 1.0, "seed": 1}),
        (Sampling(top_k=5, seed=1), {"top_k": 5, "seed": 1}),
        (Sampling(top_k=5, top_p=0.5, seed=0, temperature=0.5), {"top_k": 5, "top_p": 0.5, "seed": 0}),
        (Sampling(top_k=1, length_penalty=2.0, presence_penalty=0.5), {"top_k": 1, "presence_penalty": 0.5}),
        (Sampling(beam_width=2, beam_search_diversity_rate=0.5), {"length_penalty": 1.0, "beam_width": 2}),
    ],
)
def test_how_tokens_are_chosen(sampling: Sampling, expected: dict[str, Any]) -> None:
    config = executor_request(trtllm, Submit(1, [5], 3, sampling)).sampling_config
    names = ("top_k", "top_p", "seed", "presence_penalty", "length_penalty")
    given = {name: getattr(config, name) for name in names if getattr(config, name) is not None}
    assert given | {"beam_width": config.beam_width} == {"beam_width": 1, **expected}


def test_without_a_seed_each_request_has_its_own() -> None:
    requests = [executor_request(trtllm, Submit(1, [5], 3, Sampling())) for _ in range(9)]
    assert len({each.sampling_config.seed for each in requests}) == 9


def test_the_librarys_sentences_become_ours() -> None:
    too_long = coded(
        "[TensorRT-LLM][ERROR] Prompt length (600) exceeds maximum input length (511). Set log level to info"
    )
    assert isinstance(too_long, PromptTooLong)
    assert too_long.facts["excess_tokens"] == 89
    refusal = "[TensorRT-LLM][ERROR] Assertion failed: beamWidth > 0 (/home/x/llm/cpp/a.cpp:12)\n1 0x7f stack"
    assert sentence(refusal) == "beamWidth > 0"
    assert is_device_lost("[TensorRT-LLM][ERROR] CUDA runtime error in ::cudaStreamSynchronize: unspecified")
    assert not is_device_lost("LoRA task 4 not found in cache")


def test_it_offers_guides_once_the_executor_is_told_to_follow_them(load_engine: Load, tmp_path: Path) -> None:
    assert load_engine()[0].ready.guide_types == ()
    make_tokenizer().save(str(tmp_path / "engine" / "tokenizer.json"))
    engine, sink = load_engine(guided_decoding_backend="xgrammar")
    assert engine.ready.guide_types == GUIDE_TYPES
    engine.submit(Submit(1, [5, 6], 3, GREEDY, guide=Guide("regex", "a+")))
    assert sink.end_of(1) == "length"


def test_guided_decoding_without_a_tokenizer_does_not_start(load_engine: Load) -> None:
    with pytest.raises(EngineStartFailed, match="could not start"):
        load_engine(guided_decoding_backend="xgrammar")


@pytest.mark.parametrize(
    ("guide", "guide_type", "text"),
    [
        (Guide("json"), "JSON", None),
        (Guide("json_schema", "{}"), "JSON_SCHEMA", "{}"),
        (Guide("regex", "a+"), "REGEX", "a+"),
        (Guide("ebnf_grammar", "root ::= [0-9]"), "EBNF_GRAMMAR", "root ::= [0-9]"),
    ],
)
def test_guides_become_the_executors(guide: Guide, guide_type: str, text: str | None) -> None:
    asked = executor_request(trtllm, Submit(1, [5], 3, GREEDY, guide=guide)).guided_decoding_params
    assert asked.guide_type == getattr(trtllm.GuidedDecodingParams.GuideType, guide_type)
    assert asked.guide == text
    assert executor_request(trtllm, Submit(1, [5], 3, GREEDY)).guided_decoding_params is None
