"""LoRA adapters that are loaded while the engine serves, cached tokens and events of the KV cache."""

import json
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.adapters import digest_of
from errors.settings import InvalidSetting
from runner.engines.protocol.messages import LoadAdapter, Ready, Sampling, Statistics, Submit, UnloadAdapter
from runner.engines.tensorrt_llm_pytorch.arguments import read_arguments
from runner.engines.tensorrt_llm_pytorch.kv_events import KvEvents
from tests.runner.engines.kv_subscriber import replayed
from tests.runner.engines.listening import DEADLINE_S
from tests.runner.engines.lora_adapters import make_adapter
from tests.runner.engines.tensorrt_llm_pytorch.llm_api_engines import (
    Recorded,
    events_config,
    make_directory,
    running,
)

GREEDY = Sampling(top_k=1)
LORA = {
    "max_loras": 2,
    "max_cpu_loras": 3,
    "max_lora_rank": 16,
    "lora_target_modules": ["attn_q", "attn_v"],
}
TARGETS = {"target_modules": ["q_proj", "v_proj"]}


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Recorded]:
    directory = make_directory(tmp_path / "engine", lora_config=LORA)
    make_adapter(directory / "lora" / "french", 3, **TARGETS)
    with running(directory, tmp_path / "run", stats_check_period_ms="10") as client:
        yield client


def ordered(engine: Recorded, order: Any) -> str:
    engine.send(order)
    return engine.wait_for_end(order.request_id)


def loaded(engine: Recorded) -> dict[str, str]:
    return [engine.ready, *(each for each in engine.messages if isinstance(each, Ready))][-1].adapters


def test_adapters_are_loaded_replaced_and_unloaded(engine: Recorded, tmp_path: Path) -> None:
    two, five = (make_adapter(tmp_path / name, shift, **TARGETS) for name, shift in (("two", 2), ("five", 5)))
    assert (engine.ready.max_adapters, engine.ready.max_running_adapters) == (3, 2)
    assert ordered(engine, LoadAdapter(1, "pirate", str(two), digest_of(two))) == "end"
    assert loaded(engine) == {"pirate": digest_of(two)}
    for number, name, token in ((2, "pirate", 9), (3, "french", 10), (4, None, 7)):
        assert engine.answer(Submit(number, [7], 1, GREEDY, lora_name=name)) == ([token], "length")
    assert "it is loaded already" in ordered(engine, LoadAdapter(5, "pirate", str(five)))
    engine.send(Submit(6, [7], 4000, GREEDY, lora_name="pirate"))
    engine.wait_for_tokens(6)
    assert ordered(engine, LoadAdapter(7, "pirate", str(five), replaces=True)) == "end"
    assert engine.answer(Submit(8, [7], 1, GREEDY, lora_name="pirate")) == ([12], "length")
    assert "holds 3 of 3 adapters" in ordered(engine, LoadAdapter(9, "more", str(two)))
    engine.wait_for(lambda: _statistics(engine).running_adapters == ["pirate"])
    engine.cancel(6)
    assert engine.wait_for_end(6) == "cancelled"
    assert set(engine.tokens(6)) == {9}, "a running request lost its adapter"
    assert ordered(engine, UnloadAdapter(10, "pirate")) == "end"
    assert loaded(engine) == {}
    refused = engine.answer(Submit(11, [7], 1, GREEDY, lora_name="pirate"))[1]
    assert "an adapter of this engine (french)" in refused
    assert ordered(engine, UnloadAdapter(12, "pirate")).startswith("E1015")
    assert "the engine carries it" in ordered(engine, UnloadAdapter(13, "french"))


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"r": 32}, "max_lora_rank in llm_args.lora_config of the build config is 16"),
        (
            {"target_modules": ["q_proj", "up_proj"]},
            "name all of them in lora_target_modules in llm_args.lora_config",
        ),
        ({"target_modules": "all-linear"}, "it changes no module by name"),
        ({"standin_shift": 0}, "E1014 AdapterRefused: The LoRA adapter 'bad' is refused: TensorRT-LLM can't"),
    ],
)
def test_what_can_not_be_loaded_leaves_the_engine_as_it_was(
    engine: Recorded, tmp_path: Path, config: dict[str, Any], told: str
) -> None:
    folder = make_adapter(tmp_path / "bad", 1, **{**TARGETS, **config})
    assert told in ordered(engine, LoadAdapter(1, "bad", str(folder)))
    assert loaded(engine) == {}
    good = make_adapter(tmp_path / "good", 2, **TARGETS)
    assert ordered(engine, LoadAdapter(2, "good", str(good))) == "end"
    assert engine.answer(Submit(3, [7], 2, GREEDY, lora_name="good")) == ([9, 9], "length")


def test_what_lora_config_leaves_out_is_the_librarys_default(tmp_path: Path) -> None:
    config = {"max_cpu_loras": 2, "max_loras": 2, "lora_target_modules": None}
    directory = make_directory(tmp_path / "engine", lora_config=config)
    with running(directory, tmp_path / "run") as engine:
        high = make_adapter(tmp_path / "high", 1, r=65, **TARGETS)
        assert "max_lora_rank in llm_args.lora_config" in ordered(engine, LoadAdapter(1, "high", str(high)))
        fitting = make_adapter(tmp_path / "fitting", 1, r=64, **TARGETS)
        told = ordered(engine, LoadAdapter(2, "fitting", str(fitting)))
    assert "it changes q_proj, v_proj; name all of them in lora_target_modules" in told


def test_an_adapter_that_is_loaded_again_has_its_number_again(engine: Recorded, tmp_path: Path) -> None:
    folder = make_adapter(tmp_path / "pirate", 2, **TARGETS)
    numbers = []
    for count, shift in enumerate((2, 2, 5, 2)):
        make_adapter(folder, shift, **TARGETS)
        assert ordered(engine, LoadAdapter(10 * count + 1, "pirate", str(folder))) == "end"
        submit = Submit(10 * count + 2, [7], 1, GREEDY, lora_name="pirate")
        assert engine.answer(submit) == ([7 + shift], "length")
        assert ordered(engine, UnloadAdapter(10 * count + 3, "pirate")) == "end"
        # A load is a request of its own.
        numbers.append(engine.request(2 * count + 2)["lora_request"]["lora_int_id"])
    assert numbers[0] == numbers[1] == numbers[3] != numbers[2]


def test_an_engine_without_room_for_adapters_names_the_keys(tmp_path: Path) -> None:
    with running(make_directory(tmp_path / "engine"), tmp_path / "run") as engine:
        told = ordered(engine, LoadAdapter(1, "pirate", str(tmp_path)))
    assert "E1013" in told
    assert "max_cpu_loras, max_lora_rank and lora_target_modules in llm_args.lora_config" in told


def test_cached_tokens_are_told_once_and_salts_and_adapters_share_none(engine: Recorded) -> None:
    prompt = [each % 300 for each in range(70)]
    for number, options, cached in (
        (1, {}, 0),
        (2, {}, 69),
        (3, {"cache_salt": "mine"}, 0),
        (4, {"lora_name": "french"}, 0),
    ):
        assert engine.answer(Submit(number, prompt, 2, GREEDY, **options))[1] == "length"
        assert engine.cached(number) == [cached]


@pytest.mark.parametrize("fault", ["", "blocking"])
def test_routers_get_the_events_of_full_blocks_of_the_largest_window(tmp_path: Path, fault: str) -> None:
    prompt = [each % 300 for each in range(1, 71)]
    with (
        tempfile.TemporaryDirectory() as sockets,
        running(
            make_directory(tmp_path / "engine"),
            tmp_path / "run",
            fault,
            kv_events_config=json.dumps(events_config(sockets)),
        ) as engine,
    ):
        assert engine.ready.kv_block_tokens == 32
        assert engine.llm()["kv_cache_config"]["event_buffer_max_size"] > 0
        for number, ids in enumerate((prompt, [*prompt[:64], 9], [*prompt[:64], *[9] * 32], [8] * 128), 1):
            # The last one ends after the engine has seen that there are no events.
            engine.answer(Submit(number, ids, 1 if number < 4 else 200, GREEDY))
        events: list[dict[str, Any]] = []
        end_s = time.monotonic() + DEADLINE_S
        while not any(each["type"] == "BlockRemoved" for each in events):
            assert time.monotonic() < end_s, "the last request's events were not published"
            events = [each for batch in replayed(f"ipc://{sockets}/replay", 0).values() for each in batch]
    assert not (tmp_path / "run" / "blocked.json").exists(), "the loop of all requests had to wait"
    cleared, first, second, third, *removed = events
    assert cleared == {"type": "AllBlocksCleared"}
    assert (first["parent_block_hash"], first["token_ids"], first["block_size"]) == (None, prompt[:64], 32)
    assert (len(first["block_hashes"]), first["medium"], first["lora_name"]) == (2, "GPU", None)
    assert (second["parent_block_hash"], second["token_ids"]) == (first["block_hashes"][-1], [9] * 32)
    assert third["token_ids"] == [8] * 128
    known = {hash_ for each in (first, second, third) for hash_ in each["block_hashes"]}
    assert {hash_ for each in removed for hash_ in each["block_hashes"]} < known, "of a partial block"


class Published:
    def __init__(self) -> None:
        self.events: list[str] = []

    def publish(self, events: list[object]) -> None:
        self.events += [type(each).__name__ for each in events]


def test_events_that_were_dropped_make_routers_forget_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    published = Published()
    module = "runner.engines.tensorrt_llm_pytorch.kv_events"
    monkeypatch.setattr(f"{module}.Publisher", lambda config: published)
    events = KvEvents({}, 2)
    block = {"block_hash": 7, "tokens": [{"token_id": 1}, {"token_id": 2}]}
    stored = {"type": "stored", "parent_hash": None, "blocks": [block]}
    events.publish({"event_id": 1, "data": stored})
    events.publish({"event_id": 2, "data": {"type": "updated", "block_hash": 7}})
    events.publish({"event_id": 5, "data": {"type": "removed", "block_hashes": [7]}})
    assert published.events == ["AllBlocksCleared", "BlockStored", "AllBlocksCleared"]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"enable_attention_dp": True}, "enable_attention_dp,"),
        ({"kv_cache_config": {"enable_block_reuse": False}}, "enable_block_reuse: false,"),
        ({"kv_cache_config": {"event_buffer_max_size": 0}}, "event_buffer_max_size: 0,"),
        ({"lora_config": LORA, "enable_attention_dp": True}, "enable_attention_dp and lora_config,"),
    ],
)
def test_events_need_one_cache_that_is_reused_and_no_adapters(
    tmp_path: Path, arguments: dict[str, Any], told: str
) -> None:
    directory = make_directory(tmp_path / "engine", **arguments)
    with pytest.raises(InvalidSetting, match=f"KV_EVENTS must be left out for an engine with {told}"):
        read_arguments(directory, {"kv_events_config": json.dumps(events_config("/tmp"))})


def _statistics(engine: Recorded) -> Statistics:
    found = [each for each in engine.messages if isinstance(each, Statistics)]
    return found[-1] if found else Statistics(active=0, queued=0)
