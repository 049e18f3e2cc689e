"""The paced engine: the prompt again and again, a token at a time, never faster than told."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from errors.engines import EngineStartFailed
from errors.settings import InvalidSetting
from runner.engines.paced.adapter import PacedEngine, load
from runner.engines.paced.faults import FAULT_SEEDS, parse_faults
from runner.engines.protocol.messages import Sampling, Submit
from runner.engines.server.loading import start_errors
from tests.runner.engines.listening import make_paced_directory
from tests.runner.engines.recording_sink import RecordingSink


@pytest.fixture
def sink() -> RecordingSink:
    return RecordingSink()


@pytest.fixture
def engine(tmp_path: Path, sink: RecordingSink) -> Iterator[PacedEngine]:
    engine = load(make_paced_directory(tmp_path / "engine", 500), sink, {})
    yield engine
    engine.close()


def test_it_repeats_the_prompt_to_the_asked_length_and_never_faster_than_its_rate(
    engine: PacedEngine, sink: RecordingSink
) -> None:
    start_s = time.perf_counter()
    for request_id in range(10):
        engine.submit(Submit(request_id, input_ids=[request_id, 20], max_tokens=99))
    assert [sink.wait(each) for each in range(10)] == [
        ([each, 20] * 49 + [each], "length") for each in range(10)
    ]
    assert time.perf_counter() - start_s >= 99 / 500


def test_the_rate_can_be_overridden_and_zero_is_as_fast_as_it_goes(
    tmp_path: Path, sink: RecordingSink
) -> None:
    engine = load(make_paced_directory(tmp_path / "engine", 0.001), sink, {"tokens_per_second": "0"})
    engine.submit(Submit(1, input_ids=[1, 2], max_tokens=1000))
    engine.submit(Submit(2, input_ids=[3], max_tokens=1000))
    assert [sink.wait(1)[0], sink.wait(2)[0]] == [[1, 2] * 500, [3] * 1000]
    engine.close()


def test_nothing_comes_after_a_cancelled_end(engine: PacedEngine, sink: RecordingSink) -> None:
    """The sink refuses tokens after the end."""
    engine.submit(Submit(1, input_ids=[1], max_tokens=100_000))
    engine.submit(Submit(2, input_ids=[2], max_tokens=50))
    engine.cancel(1)
    engine.cancel(1)
    assert (sink.end_of(1), sink.wait(2)) == ("cancelled", ([2] * 50, "length"))
    assert sink.ends == [1, 2]
    assert engine.statistics().active == 0


def test_closing_ends_its_thread(tmp_path: Path, sink: RecordingSink) -> None:
    before = set(threading.enumerate())
    engine = load(make_paced_directory(tmp_path / "engine", 10), sink, {})
    engine.submit(Submit(1, input_ids=[1], max_tokens=100_000))
    (thread,) = [each for each in threading.enumerate() if each.name == "paced-engine" and each not in before]
    engine.close()
    thread.join(240)
    assert not thread.is_alive()


def test_what_its_directory_lacks_is_told(tmp_path: Path, sink: RecordingSink) -> None:
    engine_dir = make_paced_directory(tmp_path / "engine", 10)
    (engine_dir / "config.json").write_text("{}")
    with pytest.raises(EngineStartFailed, match="vocab_size"), start_errors("paced"):
        load(engine_dir, sink, {})
    (engine_dir / "config.json").write_text("not JSON")
    with pytest.raises(EngineStartFailed, match="JSONDecodeError"), start_errors("paced"):
        load(engine_dir, sink, {})


@pytest.mark.parametrize("text", ["request", "slow_start=soon", "sneeze_every=3", "crash_every=", "stall=3"])
def test_a_fault_that_is_not_known_is_e1006(text: str) -> None:
    with pytest.raises(InvalidSetting, match="COG_TRITON_FAULTS"):
        parse_faults(text)


def test_faults_come_by_seed_only_where_they_are_switched_on_or_every_so_many_requests() -> None:
    plain, seeded = (Submit(1, [5], 3, Sampling(seed=seed)) for seed in (None, next(iter(FAULT_SEEDS))))
    found = [parse_faults(text).of(seeded, 1) for text in ("", "slow_start=1", "requests")]
    assert found == [None, None, "stall"]
    assert parse_faults("requests").of(plain, 1) is None
    faults = parse_faults("garbage_every=3, slow_start=0.5")
    assert faults.slow_start_s == 0.5
    assert [faults.of(plain, number) for number in range(1, 5)] == [None, None, "garbage", None]


@pytest.mark.parametrize(("written", "option"), [(-1, None), ({"a": 1}, None), (100, "fast")])
def test_a_wrong_rate_is_named(
    tmp_path: Path, sink: RecordingSink, written: object, option: str | None
) -> None:
    folder = make_paced_directory(tmp_path / "engine", written)
    with pytest.raises(InvalidSetting, match="E1006 InvalidSetting: tokens_per_second"):
        load(folder, sink, {} if option is None else {"tokens_per_second": option})
