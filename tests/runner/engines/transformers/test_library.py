"""What the engine relies on inside transformers' continuous batching; fails when an update changes it."""

from collections.abc import Iterable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="runs in the engine environment")

import torch
from transformers import AutoModelForCausalLM
from transformers.generation.continuous_batching.requests import RequestState
from transformers.generation.continuous_batching.scheduler import SCHEDULER_MAPPING

from runner.engines.protocol.messages import Submit
from runner.engines.sequence import Sequence
from runner.engines.transformers import attention
from runner.engines.transformers.adapter import load
from runner.engines.transformers.batching import Batching
from runner.engines.transformers.sampling import SamplingProcessor
from runner.engines.transformers.settings import Options, batching_config
from tests.runner.engines.transformers.transformers_models import RecordingSink, llama, save_model, serve

pytestmark = pytest.mark.engine_env


@pytest.fixture(scope="module")
def batching(tmp_path_factory: pytest.TempPathFactory) -> Batching:
    """Made, but its loop not started."""
    model = AutoModelForCausalLM.from_pretrained(save_model(llama(), tmp_path_factory.mktemp("llama")))
    options = Options.parse({"device": "cpu", "max_batch_size": "4"})
    return Batching(model, batching_config(options, model.config, model.dtype, 0), RecordingSink())


def test_the_library_decides_nothing_about_tokens_and_allocates_for_no_more_than_asked(
    batching: Batching,
) -> None:
    processor = batching._processor
    processors = list(processor.model_runner.logit_processor.logits_processor)
    assert [type(part) for part in processors] == [SamplingProcessor]
    assert set(SCHEDULER_MAPPING) == {"fifo", "prefill_first"}  # Our scheduler's name is gone again.
    runner, cache = processor.model_runner, processor.cache
    assert (runner.do_sample, runner.pad_inputs, processor.use_async_batching) == (False, False, False)
    assert (cache.max_batch_tokens, cache.max_tokens_read, batching.max_sequence_tokens) == (512, 4096, 4096)


def test_each_sequence_attends_to_its_own_keys_only(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library's attention, to which calls without a paged cache are passed on, is not called."""
    monkeypatch.setattr(attention, "sdpa_attention_forward", None)
    with serve(directory) as served:
        assert served.engine._batch._processor.inputs_and_outputs.attention_mask is None
        assert served.answer([1, 2, 3], 5)[0] == served.generate([1, 2, 3], 5)


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


def test_a_cancellation_that_overtakes_its_request_is_kept(batching: Batching) -> None:
    batching.running.add(Sequence(Submit(5, [1, 2], 3)))
    scheduler = batching._processor.scheduler
    batching.cancel(5)
    scheduler.set_request_cancellation("5")
    scheduler.clear_cancelled_requests()
    scheduler.add_waiting_request(RequestState(request_id="5", initial_tokens=[1, 2]))
    sink = batching.running._sink
    assert isinstance(sink, RecordingSink)
    assert sink.reasons == {5: "cancelled"}
    assert not scheduler.has_pending_requests()
