"""Orders to a vLLM engine while it serves: LoRA adapters, sleep and wake."""

import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from engine.adapters import digest_of
from runner.engines.protocol.messages import (
    Cancel,
    LoadAdapter,
    Ready,
    Sampling,
    Sleep,
    Statistics,
    Submit,
    UnloadAdapter,
    WakeUp,
)
from tests.engine.pooling_files import write_pooling
from tests.runner.engines.listening import Listening
from tests.runner.engines.lora_adapters import make_adapter
from tests.runner.engines.vllm.vllm_engines import make_python, make_vllm_directory, running, started

GREEDY = Sampling(top_k=1)
NEVER_EMBEDDED = 669
LORA = {"enable_lora": True, "max_loras": 2, "max_cpu_loras": 3, "max_lora_rank": 16}


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_python(tmp_path_factory.mktemp("python") / "python", sys.executable)


@pytest.fixture
def engine(tmp_path: Path, python: str) -> Iterator[Listening]:
    directory = make_vllm_directory(tmp_path / "engine", max_num_seqs=64, enable_sleep_mode=True, **LORA)
    make_adapter(directory / "lora" / "french", 3)
    with running(directory, python) as client:
        yield client


def ordered(engine: Listening, order: Any) -> str:
    engine.send(order)
    return engine.wait_for_end(order.request_id)


def ready(engine: Listening) -> Ready:
    return [engine.ready, *(each for each in engine.messages if isinstance(each, Ready))][-1]


def test_adapters_are_loaded_replaced_and_unloaded_by_digest(engine: Listening, tmp_path: Path) -> None:
    two, five = (make_adapter(tmp_path / name, shift) for name, shift in (("two", 2), ("five", 5)))
    assert ordered(engine, LoadAdapter(1, "pirate", str(two), digest_of(two))) == "end"
    assert ready(engine).adapters == {"pirate": digest_of(two)}
    prompt = [*range(100, 140)]
    for number, name, token in ((2, "pirate", 141), (3, "french", 142), (4, None, 140)):
        assert engine.answer(Submit(number, prompt, 1, GREEDY, lora_name=name)) == ([token], "length")
    assert "it is loaded already" in ordered(engine, LoadAdapter(5, "pirate", str(five)))
    engine.send(Submit(6, [7], 2000, GREEDY, lora_name="pirate"))
    engine.wait_for_tokens(6)
    assert ordered(engine, LoadAdapter(7, "pirate", str(five), replaces=True)) == "end"
    assert ready(engine).adapters == {"pirate": digest_of(five)}
    assert engine.answer(Submit(8, prompt, 1, GREEDY, lora_name="pirate")) == ([144], "length")
    assert engine.cached(8) == [0], "the other adapter's prefix was used"
    assert "holds 3 of 3 adapters" in ordered(engine, LoadAdapter(9, "more", str(two)))
    assert ordered(engine, UnloadAdapter(10, "pirate")) == "end"
    assert ready(engine).adapters == {}
    assert (
        "an adapter of this engine (french)"
        in engine.answer(Submit(11, [7], 1, GREEDY, lora_name="pirate"))[1]
    )
    assert engine.wait_for_end(6) == "length"
    assert set(engine.tokens(6)[:3]) == {9, 11, 13}, "a running request lost its adapter"
    assert engine.tokens(6)[-1] == (7 + 2 * 2000) % 1000
    assert ordered(engine, LoadAdapter(12, "more", str(two))) == "end", "unloaded ones kept their room"
    assert ordered(engine, UnloadAdapter(13, "pirate")).startswith("E1015")
    assert "the engine carries it" in ordered(engine, UnloadAdapter(14, "french"))


def test_statistics_name_the_adapters_of_requests(tmp_path: Path, python: str) -> None:
    directory = make_vllm_directory(tmp_path / "engine", **LORA)
    make_adapter(directory / "lora" / "french", 3)
    with running(directory, python, stats_check_period_ms="10") as engine:

        def names() -> list[tuple[list[str], list[str]]]:
            found = [each for each in engine.messages if isinstance(each, Statistics)]
            return [(each.running_adapters, each.waiting_adapters) for each in found[-1:]]

        assert engine.ready.max_running_adapters == LORA["max_loras"]
        assert (engine.ready.kv_block_tokens, engine.ready.num_kv_blocks) == (16, 1024)
        engine.send(Submit(1, [7], 4000, GREEDY, lora_name="french"))
        engine.wait_for(lambda: names() == [(["french"], [])])
        engine.send(Cancel(1))
        engine.wait_for(lambda: names() == [([], [])])


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"r": 32}, "its rank is 32, and max_lora_rank in vllm: of the build config is 16"),
        ({"rank_pattern": {"q_proj": 17}}, "its rank is 17"),
        ({"r": True}, "does not describe a LoRA"),
        ({"use_dora": True}, "does not describe a LoRA"),
        ({"peft_type": "IA3"}, "does not describe a LoRA"),
        ({"rank_pattern": 3}, "adapter_config.json can't be read"),
        ({"standin_shift": 0}, "E2206 VllmOrderFailed: vLLM failed to load the LoRA adapter bad"),
    ],
)
def test_what_can_not_be_loaded_leaves_the_engine_as_it_was(
    engine: Listening, tmp_path: Path, config: dict[str, Any], told: str
) -> None:
    folder = make_adapter(tmp_path / "bad", 1, **config)
    assert told in ordered(engine, LoadAdapter(1, "bad", str(folder)))
    assert ready(engine).adapters == {}
    good = make_adapter(tmp_path / "good", 2)
    assert f"its digest is {digest_of(good)}, not 00" in ordered(
        engine, LoadAdapter(2, "good", str(good), "0" * 64)
    )
    assert "can't be read" in ordered(engine, LoadAdapter(3, "good", str(tmp_path / "absent")))
    assert [ordered(engine, LoadAdapter(number, f"{number}", str(good))) for number in (4, 5)] == ["end"] * 2
    assert engine.answer(Submit(6, [7], 2, GREEDY, lora_name="5")) == ([9, 11], "length")


def test_all_clients_hear_of_a_change(tmp_path: Path, python: str) -> None:
    directory = make_vllm_directory(tmp_path / "engine", **LORA)
    with (
        started(directory, python) as server,
        Listening(server) as first,
        Listening(server) as second,
    ):
        folder = make_adapter(tmp_path / "two", 2)
        ordered(first, LoadAdapter(1, "pirate", str(folder)))
        second.wait_for(lambda: ready(second).adapters == {"pirate": digest_of(folder)})
        with Listening(server) as late:
            assert late.ready.adapters == {"pirate": digest_of(folder)}
        assert "E1013" in ordered(first, Sleep(2, 1, "abort"))
        assert "give enable_sleep_mode: true" in first.ends(2)[0]


def test_an_engine_sleeps_and_wakes(engine: Listening, tmp_path: Path) -> None:
    folder, french = make_adapter(tmp_path / "two", 2), tmp_path / "engine" / "lora" / "french"
    gone = make_adapter(tmp_path / "gone", 4)
    ordered(engine, LoadAdapter(1, "pirate", str(folder)))
    ordered(engine, LoadAdapter(2, "gone", str(gone)))
    for number, (level, mode) in enumerate(((1, "abort"), (2, "wait")), 1):
        first = 10 * number
        engine.send(Submit(first, [7], 300, GREEDY))
        engine.wait_for_tokens(first)
        assert ordered(engine, Sleep(first + 1, level, mode)) == "end"  # type: ignore[arg-type]
        assert engine.wait_for_end(first).startswith("E2114" if mode == "abort" else "length")
        assert ready(engine).is_asleep
        assert engine.answer(Submit(first + 2, [7], 1, GREEDY))[1].startswith("E2114")
        assert ordered(engine, LoadAdapter(first + 7, "late", str(folder))).startswith("E2114")
        if level == 2:
            make_adapter(gone, 5)
        assert ordered(engine, WakeUp(first + 3, ["weights"])) == "end"
        assert ready(engine).is_asleep
        assert ordered(engine, WakeUp(first + 4, [])) == "end"
        assert not ready(engine).is_asleep
        assert engine.answer(Submit(first + 5, [7], 2, GREEDY)) == ([8, 9], "length")
        assert engine.answer(Submit(first + 6, [7], 2, GREEDY, lora_name="pirate")) == ([9, 11], "length")
    # Level 2 drops adapters, which are read again: one is not what was loaded.
    assert ready(engine).adapters == {"pirate": digest_of(folder)}
    assert ordered(engine, WakeUp(40, [])) == "end"
    assert ordered(engine, LoadAdapter(41, "gone", str(gone))) == "end"
    assert ordered(engine, Sleep(42, 2, "abort")) == "end"
    shutil.rmtree(gone)
    make_adapter(french, 0)
    assert ordered(engine, WakeUp(43, [])).startswith("E2206"), "a request of it would end the core"
    assert ready(engine).is_asleep
    make_adapter(french, 3)
    assert ordered(engine, WakeUp(44, [])) == "end"
    assert ready(engine).adapters == {"pirate": digest_of(folder)}
    assert engine.answer(Submit(45, [7], 2, GREEDY, lora_name="french")) == ([10, 13], "length")


@pytest.mark.parametrize(
    ("shift", "code", "told"), [(0, 1, "failed to load the LoRA adapter bad"), (-1, 70, "was killed")]
)
def test_an_engine_whose_own_adapter_can_not_be_loaded_does_not_start(
    tmp_path: Path, python: str, shift: int, code: int, told: str
) -> None:
    """A request that names it would end the core."""
    directory = make_vllm_directory(tmp_path / "engine", **LORA)
    make_adapter(directory / "lora" / "bad", shift)
    with started(directory, python) as server:
        assert server.exit_code() == code
        assert told in str(server.exit_reason.read())


def test_a_core_that_hangs_while_a_sleep_waits_for_its_requests_is_ended(tmp_path: Path, python: str) -> None:
    directory = make_vllm_directory(tmp_path / "engine", enable_sleep_mode=True)
    write_pooling(directory, "lasttoken", max_tokens=512)
    with started(directory, python, hang_timeout_s=3.0) as server, Listening(server) as client:
        client.send(Submit(1, [7, NEVER_EMBEDDED], 0, embeds=True))
        client.send(Sleep(2, 1, "wait"))
        assert "heard nothing for 3 s" in client.wait_for_end(1)
        assert server.exit_code() == 70


@pytest.mark.parametrize("arguments", [{}, {"max_lora_rank": 8}])
def test_an_engine_without_room_for_adapters_refuses_them(
    tmp_path: Path, python: str, arguments: dict[str, Any]
) -> None:
    with running(make_vllm_directory(tmp_path / "engine", **arguments), python) as client:
        told = ordered(client, LoadAdapter(1, "pirate", str(make_adapter(tmp_path / "two", 2))))
        assert told.startswith("E1013")
        assert "give enable_lora and max_loras in vllm: of its build config" in told
