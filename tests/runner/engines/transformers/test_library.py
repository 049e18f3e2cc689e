"""What the engine relies on inside transformers' continuous batching; fails when an update changes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="runs in the engine environment")

import torch
from transformers import AttentionInterface, AutoModelForCausalLM
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.continuous_api import (
    BackgroundThreadStatus,
    ContinuousBatchingManager,
    OutputRouter,
)
from transformers.generation.continuous_batching.requests import RequestState
from transformers.generation.continuous_batching.scheduler import SCHEDULER_MAPPING, FIFOScheduler

from runner.engines.protocol.messages import Submit
from runner.engines.transformers import library_parts
from runner.engines.transformers.adapter import load
from runner.engines.transformers.attention import install, sdpa_per_sequence
from runner.engines.transformers.batching import Batching
from runner.engines.transformers.sampling import SamplingProcessor
from runner.engines.transformers.sequence import Sequence
from runner.engines.transformers.settings import Options, batching_config
from tests.runner.engines.transformers.transformers_models import RecordingSink, llama, save_model

pytestmark = pytest.mark.engine_env


@pytest.fixture(scope="module")
def batching(tmp_path_factory: pytest.TempPathFactory) -> Batching:
    """Made, but its loop not started."""
    model = AutoModelForCausalLM.from_pretrained(save_model(llama(), tmp_path_factory.mktemp("llama")))
    options = Options.parse({"device": "cpu", "max_batch_size": "4"})
    return Batching(model, batching_config(options, model.config, model.dtype, 0), RecordingSink())


def test_the_loop_works_with_our_parts(batching: Batching) -> None:
    processor = batching._processor
    assert isinstance(processor.output_router, library_parts.Router)
    assert isinstance(processor.scheduler, library_parts.Scheduler)
    assert isinstance(processor.offloading_manager.scheduler, library_parts.Scheduler)
    assert isinstance(processor.background_thread_status, library_parts.Status)
    processors = list(processor.model_runner.logit_processor.logits_processor)
    assert [type(part) for part in processors] == [SamplingProcessor]
    assert processor.logit_processor is processor.model_runner.logit_processor
    # Our scheduler's name is gone again.
    assert set(SCHEDULER_MAPPING) == {"fifo", "prefill_first"}
    install()
    assert AttentionInterface()["sdpa"] is sdpa_per_sequence
    assert batching._manager.model.config._attn_implementation == "sdpa"
    runner, cache = processor.model_runner, processor.cache
    # The library decides nothing about tokens, and allocates for no more than asked.
    assert (runner.do_sample, runner.pad_inputs, runner.use_cuda_graph_varlen) == (False, False, False)
    assert processor.use_async_batching is False
    assert (cache.max_batch_tokens, cache.max_tokens_read, batching.max_sequence_tokens) == (512, 2048, 2048)


def test_what_we_override_is_there_to_be_overridden() -> None:
    overridden = {
        OutputRouter: ("deliver_batch", "fail_and_deliver"),
        FIFOScheduler: ("add_waiting_request", "clear_cancelled_requests"),
        BackgroundThreadStatus: ("record_fatal_error", "mark_as_stopped"),
        ContinuousBatchingManager: ("add_request", "cancel_request", "warmup", "start", "stop"),
        PagedAttentionCache: ("update", "compute_free_capacity"),
    }
    missing = [
        (owner, name) for owner, names in overridden.items() for name in names if not hasattr(owner, name)
    ]
    assert missing == []


def test_the_loop_of_a_small_model_computes_in_one_thread(tmp_path: Path) -> None:
    counts: list[int] = []

    class CountingSink(RecordingSink):
        def tokens(self, new: Iterable[tuple[int, list[int]]]) -> None:
            counts.append(torch.get_num_threads())
            super().tokens(new)

    sink = CountingSink()
    engine = load(save_model(llama(), tmp_path), sink, {"device": "cpu"})
    engine.submit(Submit(1, [1, 2], 3))
    sink.wait(1)
    engine.close()
    assert set(counts) == {1}


@pytest.fixture
def waiting(batching: Batching) -> Iterator[Sequence]:
    sequence = Sequence(Submit(5, [1, 2], 3))
    key = batching.running.add(sequence)
    yield sequence
    batching.running.pop(key, None)


def test_a_cancellation_that_overtakes_its_request_is_kept(batching: Batching, waiting: Sequence) -> None:
    scheduler = batching._processor.scheduler
    batching.cancel(5)
    scheduler.set_request_cancellation("5")
    scheduler.clear_cancelled_requests()
    scheduler.add_waiting_request(RequestState(request_id="5", initial_tokens=[1, 2]))
    sink = batching.running._sink
    assert isinstance(sink, RecordingSink)
    assert sink.reasons == {5: "cancelled"}
    assert not scheduler.has_pending_requests()
