"""vLLM's own engine core below the engine server, over the stand-in for a GPU."""

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest

from engine.adapters import digest_of
from engine.kinds import ENGINE_ARGS_NAME, LORA_FOLDER, find_kind
from engine.machine.processes import descendants
from engine.machine.root import SOURCE_ROOT
from perf.peers.engine import standin_engine
from perf.processes import CORE, processes
from runner.engines.kv_events import BlockStored
from runner.engines.paced.prefix_cache import PrefixCache
from runner.engines.protocol.messages import LoadAdapter, Sampling, Sleep, Submit, UnloadAdapter, WakeUp
from runner.engines.protocol.options import KV_EVENTS_OPTION
from runner.engines.vllm.arguments import ENGINE_KIND
from runner.settings.settings import load_settings
from tests.runner.engines.engine_server import EngineServerUnderTest
from tests.runner.engines.kv_subscriber import replayed
from tests.runner.engines.listening import Listening
from tests.runner.engines.lora_adapters import make_adapter
from tests.runner.servers import is_running, wait_until

PYTHON = Path(
    os.environ.get("VLLM_PYTHON")
    or SOURCE_ROOT / find_kind(ENGINE_KIND).checkout_environment / "bin" / "python"
)
pytestmark = [
    pytest.mark.servers,
    pytest.mark.skipif(not PYTHON.exists(), reason="vLLM's environment is not here"),
]
StartServer = Callable[..., EngineServerUnderTest]


@pytest.fixture
def start_server(tmp_path: Path) -> Iterator[StartServer]:
    engine = standin_engine(str(PYTHON), tmp_path)
    servers = []

    def start(
        arguments: dict[str, Any] | None = None,
        options: dict[str, str] | None = None,
        carried: tuple[str, int] | None = None,
        **variables: str,
    ) -> EngineServerUnderTest:
        if carried is not None:  # An adapter.
            make_adapter(engine.folder / LORA_FOLDER / carried[0], carried[1])
        path = engine.folder / ENGINE_ARGS_NAME
        path.write_text(json.dumps({**json.loads(path.read_text()), **(arguments or {})}))
        server = EngineServerUnderTest(
            ENGINE_KIND,
            engine.folder,
            {"engine_cache_dir": str(engine.cache), **(options or {})},
            tmp_path,
            python=engine.python,
            environment={**engine.variables, **variables},
        )
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop()


def early_process(server: EngineServerUnderTest) -> int:
    """Return the process that imports vLLM for the core; multiprocessing's other child tracks resources."""
    found = wait_until(lambda: [pid for pid in descendants(server.process.pid) if is_spawned(pid)])
    return found[0]


def is_spawned(pid: int) -> bool:
    return b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()


def roles() -> dict[int, str]:
    return {int(each.folder.name): each.role for each in processes()}


def core_process(server: EngineServerUnderTest) -> int:
    (core,) = (pid for pid in descendants(server.process.pid) if roles()[pid] == CORE[0])
    return core


def test_the_process_that_imported_is_the_core_and_they_end_together(start_server: StartServer) -> None:
    server = start_server()
    early = early_process(server)
    with Listening(server) as client:
        assert client.answer(Submit(1, [7], 3)) == ([8, 9, 10], "length")
        below = descendants(server.process.pid)
        assert [pid for pid in below if roles()[pid] == CORE[0]] == [early]
        assert os.getsid(early) == os.getsid(server.process.pid)
        assert os.getpgid(early) == os.getpgid(server.process.pid)
        server.kill()
    wait_until(lambda: not any(map(is_running, below)))


@pytest.mark.long
def test_a_core_that_is_killed_is_noticed(start_server: StartServer) -> None:
    server = start_server()
    with Listening(server) as client:
        client.send(Submit(1, [7], 500))
        os.kill(core_process(server), signal.SIGKILL)
        assert client.wait_for_end(1).startswith("E2205")
    assert server.exit_code() == 70


def test_replicas_share_requests_follow_orders_and_end_together(
    start_server: StartServer, tmp_path: Path
) -> None:
    lora = {"enable_lora": True, "max_loras": 1, "max_lora_rank": 8, "enable_sleep_mode": True}
    server = start_server(
        {"data_parallel_size": 2, "max_num_seqs": 1, **lora}, STANDIN_STEP_FILE="", STANDIN_STEP_S="0.02"
    )
    adapter = make_adapter(tmp_path / "two", 2)
    greedy = Sampling(top_k=1)
    with Listening(server) as client:
        assert client.ready.max_batch_size == 2
        cores = [pid for pid in descendants(server.process.pid) if roles()[pid] == CORE[0]]
        assert len(cores) == 2

        def run_two(first: int, **fields: Any) -> list[int]:
            """Start two requests that run at the same time, and cancel them. Return their first tokens."""
            for number in (first, first + 1):
                client.send(Submit(number, [100], 900, greedy, **fields))
            for number in (first, first + 1):
                client.wait_for_tokens(number)
            for number in (first, first + 1):
                client.cancel(number)
                assert client.wait_for_end(number) == "cancelled"
            return [client.tokens(number)[0] for number in (first, first + 1)]

        assert run_two(1) == run_two(3) == [101, 101]
        client.send(LoadAdapter(10, "a", str(adapter)))
        assert client.wait_for_end(10) == "end"
        assert run_two(11, lora_name="a") == [102, 102]
        client.send(Sleep(20, 1, "abort"))
        assert client.wait_for_end(20) == "end"
        client.send(WakeUp(21, []))
        assert client.wait_for_end(21) == "end"
        assert run_two(22) == [101, 101]
        client.send(Submit(30, [7], 900), Submit(31, [7], 900))
        os.kill(cores[1], signal.SIGKILL)
        assert {client.wait_for_end(number)[:5] for number in (30, 31)} == {"E2205"}
    assert server.exit_code() == 70
    wait_until(lambda: not any(map(is_running, cores)))


@pytest.mark.long
@pytest.mark.parametrize("killed", ["the server", "the core"])
def test_while_vllm_is_imported_no_process_survives(start_server: StartServer, killed: str) -> None:
    server = start_server()
    early = early_process(server)
    below = descendants(server.process.pid)
    if killed == "the server":
        server.kill()
    else:
        os.kill(early, signal.SIGKILL)
        assert server.exit_code() == 1
        assert str(server.exit_reason.read()).startswith("E2203")
    wait_until(lambda: not any(map(is_running, below)))


def test_why_the_core_does_not_start_is_found_in_its_log(start_server: StartServer) -> None:
    server = start_server(STANDIN_STEP_FILE="/absent")
    assert server.exit_code() == 1
    reason = str(server.exit_reason.read())
    assert reason.startswith("E2203")
    assert "FileNotFoundError" in reason


def test_what_vllm_refuses_is_told_without_the_words_of_its_checker(start_server: StartServer) -> None:
    server = start_server({"kv_cache_dtype": "bfloat16"})
    assert server.exit_code() == 1
    told = str(server.exit_reason.read())
    assert told.startswith("E2202 VllmArgumentsRefused: vLLM refuses to make this engine (kv_cache_dtype=")
    assert "to `auto` or `float16`.); change" in told


_CONFIGS = """
import sys
from pathlib import Path
from runner.engines.vllm.arguments import read_arguments
from runner.engines.vllm.client import make_config
from runner.engines.vllm.interface import AsyncEngineArgs, UsageContext
arguments = read_arguments(Path(sys.argv[1]), {})
del arguments["distributed_executor_backend"]  # The stand-in can't schedule asynchronously.
ours = make_config(arguments)
for not_served in ("generation_config", "skip_tokenizer_init"):
    del arguments[not_served]
vllms = AsyncEngineArgs(**arguments).create_engine_config(UsageContext.OPENAI_API_SERVER)
assert ours.use_v2_model_runner == vllms.use_v2_model_runner
assert ours.scheduler_config.async_scheduling
assert issubclass(ours.scheduler_config.scheduler_cls, vllms.scheduler_config.get_scheduler_cls())
ours.scheduler_config.scheduler_cls = None
assert vars(ours.scheduler_config) == vars(vllms.scheduler_config)
assert str(ours) == str(vllms), f"{ours}\\n{vllms}"
"""


def test_a_core_is_configured_as_that_of_vllm_serve(tmp_path: Path) -> None:
    """Without asynchronous scheduling, for example, its steps would be slower."""
    engine = standin_engine(str(PYTHON), tmp_path)
    command = [engine.python, "-c", _CONFIGS, str(engine.folder)]
    variables = {**os.environ, **engine.variables, "PYTHONPATH": str(SOURCE_ROOT)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]


_INSPECTS = """
import os, signal, sys
from pathlib import Path
from runner.engines.vllm import core_process
from runner.engines.vllm.arguments import prepare_environment, read_arguments
arguments = read_arguments(Path(sys.argv[1]), {})
prepare_environment(arguments, sys.argv[2])
core_process.spawn_early()
from runner.engines.vllm.client import make_config
from runner.engines.vllm.interface import registry
if sys.argv[3] == "the core":
    registry._SUBPROCESS_COMMAND = ["false"]
else:
    os.kill(core_process._process.pid, signal.SIGKILL)
make_config(arguments)
# vLLM spawns another core if this one has ended.
assert core_process._process._connection.closed == (sys.argv[3] != "the core")
core_process.release()
assert list(Path(os.environ["VLLM_CACHE_ROOT"], "modelinfos").iterdir())
"""


@pytest.mark.parametrize("who", ["the core", pytest.param("another process", marks=pytest.mark.long)])
def test_a_model_is_inspected_by_the_core_unless_that_has_ended(tmp_path: Path, who: str) -> None:
    engine = standin_engine(str(PYTHON), tmp_path)
    command = [engine.python, "-c", _INSPECTS, str(engine.folder), str(tmp_path / "cache"), who]
    variables = {**os.environ, **engine.variables, "PYTHONPATH": str(SOURCE_ROOT)}
    done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]


def test_adapters_are_loaded_and_unloaded_and_the_core_sleeps_and_wakes(
    start_server: StartServer, tmp_path: Path
) -> None:
    server = start_server(
        {
            "enable_lora": True,
            "max_loras": 1,
            "max_cpu_loras": 3,
            "max_lora_rank": 8,
            "max_num_seqs": 1,
            "enable_sleep_mode": True,
        },
        carried=("own", 3),
    )
    two, five = (make_adapter(tmp_path / name, shift) for name, shift in (("two", 2), ("five", 5)))
    prompt, greedy = [*range(100, 140)], Sampling(top_k=1)
    with Listening(server) as client:

        def ordered(order: Any) -> str:
            client.send(order)
            return client.wait_for_end(order.request_id)

        assert ordered(LoadAdapter(1, "a", str(two), digest_of(two))) == "end"
        assert client.answer(Submit(2, prompt, 2, greedy, lora_name="a")) == ([141, 143], "length")
        assert client.answer(Submit(3, prompt, 2, greedy)) == ([140, 141], "length")
        assert ordered(LoadAdapter(4, "a", str(five), replaces=True)) == "end"
        assert client.answer(Submit(5, prompt, 1, greedy, lora_name="a")) == ([144], "length")
        assert client.cached(5) == [0]
        assert client.answer(Submit(6, prompt, 1, greedy, lora_name="a")) == ([144], "length")
        assert client.cached(6) == [32]
        bad = make_adapter(tmp_path / "bad", 0)
        assert "E2206" in ordered(LoadAdapter(7, "bad", str(bad)))
        for number, level, mode in ((10, 1, "abort"), (20, 2, "wait")):
            client.send(Submit(number, [7], 900, greedy))
            client.wait_for_tokens(number)
            client.send(Submit(number + 5, [7], 3, greedy))  # It waits for the other one.
            assert ordered(Sleep(number + 1, level, mode)) == "end"  # type: ignore[arg-type]
            for ended in (number, number + 5):
                assert client.wait_for_end(ended)[:6] == ("E2114 " if mode == "abort" else "length")
            assert "E2114" in client.answer(Submit(number + 2, [7], 1, greedy))[1]
            assert ordered(WakeUp(number + 3, [])) == "end"
            own = Submit(number + 6, prompt, 1, greedy, lora_name="own")
            assert client.answer(own) == ([142], "length")
            again = Submit(number + 4, prompt, 1, greedy, lora_name="a")
            assert client.answer(again) == ([144], "length")
            assert client.cached(number + 4) == [0], "prefixes of before the sleep were used"
        assert ordered(UnloadAdapter(30, "a")) == "end"
        assert client.answer(Submit(31, [7], 2, greedy)) == ([8, 9], "length")


@pytest.mark.long
def test_speculation_gives_the_same_tokens_and_tells_what_was_accepted(start_server: StartServer) -> None:
    speculation = {"method": "ngram", "num_speculative_tokens": 2, "prompt_lookup_max": 2}
    server = start_server({"speculative_config": speculation, "async_scheduling": False})
    with Listening(server) as client:
        assert client.answer(Submit(1, [7], 7, Sampling(top_k=1))) == ([*range(8, 15)], "length")
        assert client.finished(1).drafted == (3, 3)


def test_kv_events_are_those_of_vllm_and_have_the_form_of_the_paced_engines(
    start_server: StartServer,
) -> None:
    with TemporaryDirectory() as folder:  # A socket's path is short.
        endpoints = {"KV_EVENTS": f"ipc://{folder}/events", "KV_EVENTS_REPLAY": f"ipc://{folder}/replay"}
        config = load_settings({**endpoints, "KV_EVENTS_TOPIC": "kv"}).kv_events_config
        assert config is not None
        server = start_server(options={KV_EVENTS_OPTION: json.dumps(config)})
        with Listening(server) as client:
            block, num_blocks = client.ready.kv_block_tokens, client.ready.num_kv_blocks
            assert num_blocks > 0
            prompt = [*range(3 * block + 1)]
            for number, found in ((1, 0), (2, 3 * block)):
                assert client.answer(Submit(number, prompt, 3))[1] == "length"
                assert client.cached(number) == [found]
            batches = wait_until(lambda: replayed(config["replay_endpoint"], 0, b"kv"))
            (stored,) = (event for events in batches.values() for event in events)
            assert stored["token_ids"] == prompt[: 3 * block]
            (paced,) = PrefixCache(100).take(prompt)[1]
            assert isinstance(paced, BlockStored)
            ours = msgspec.to_builtins(paced)
            assert ours.keys() <= stored.keys()
            different = {"block_hashes", "token_ids", "block_size"}
            assert {name: stored[name] for name in ours.keys() - different} == {
                name: ours[name] for name in ours.keys() - different
            }
            assert len(stored["block_hashes"]) == 3
            assert all(isinstance(each, int) for each in stored["block_hashes"])


@pytest.mark.long
def test_ranks_live_however_large_their_configuration_is(start_server: StartServer) -> None:
    """A configuration that does not fit into a pipe keeps the thread that starts a rank until it is read."""
    ranks = {"tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    worker = {"worker_cls": "tests.standins.vllm_worker.StandInWorker"}
    server = start_server({**ranks, **worker, "additional_config": {"large": "x" * 200_000}})
    with Listening(server) as client:
        assert client.answer(Submit(1, [7], 3, Sampling(top_k=1))) == ([8, 9, 10], "length")
