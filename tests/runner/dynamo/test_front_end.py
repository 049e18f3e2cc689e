"""Runners behind NVIDIA Dynamo's own front end and KV router: ``make test-fleet``.

Three runners serve the tiny model on transformers, greedily: on whichever runner a text is continued, it must
be the one that a runner's own API gives.
"""

import json
import os
import signal
import socket
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine.machine.processes import descendants
from engine.machine.root import SOURCE_ROOT
from runner.dynamo.start import DynamoStart
from runner.dynamo.supervisor import worker_environment
from runner.engines.protocol.messages import Finished, FromClient, Ready, Submit, Tokens
from runner.engines.protocol.wire import FrameReader, frame
from runner.settings.ports import free_ports
from runner.settings.settings import load_settings
from tests.clients.conftest import HOST, Runner, Server
from tests.runner.paced_engine import PacedModel
from tests.runner.servers import DEADLINE_S, wait_until

PYTHON = SOURCE_ROOT / ".venv-dynamo" / "bin" / "python"
pytestmark = [
    pytest.mark.servers,
    pytest.mark.long,
    pytest.mark.skipif(not PYTHON.exists(), reason="make test-fleet makes its environment"),
]

MODEL = "tiny"
PROMPTS = ("Once upon a time", "The king said", "Alice was", "There was an old man who", "My dear", "The sea")
LONG = 400
"""Tokens of streams that something happens to."""


class FrontEnd(Server):
    """Dynamo's front end with its KV router, which finds workers by the folder ``discovery``."""

    def __init__(self, folder: Path, discovery: Path, *, reads_events: bool = False) -> None:
        (port,) = free_ports(1)
        self.url = f"http://{HOST}:{port}"
        options = {"http-host": HOST, "http-port": port, "discovery-backend": "file", "event-plane": "zmq"}
        options |= {"router-mode": "kv", "migration-limit": 3}
        command = [PYTHON, "-m", "dynamo.frontend", *([] if reads_events else ["--no-router-kv-events"])]
        command += [str(each) for name, value in options.items() for each in (f"--{name}", value)]
        names = ("DYN_TCP_RPC_HOST", "DYN_TCP_RESPONSE_STREAM_HOST", "DYN_EVENT_PLANE_HOST")
        environment = {**os.environ, **dict.fromkeys(names, HOST), "DYN_FILE_KV": str(discovery)}
        super().__init__(command, folder / "front_end.log", folder, environment)

    def models(self) -> set[str]:
        try:
            with urllib.request.urlopen(f"{self.url}/v1/models", timeout=DEADLINE_S) as answer:
                return {each["id"] for each in json.load(answer)["data"]}
        except urllib.error.URLError:
            return set()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class FleetRunner(Runner):
    def engine_pid(self) -> int:
        commands = {
            each: Path(f"/proc/{each}/cmdline").read_bytes() for each in descendants(self._process.pid)
        }
        return next(each for each, command in commands.items() if b"runner.engines.server.main" in command)

    def end(self, number: signal.Signals) -> None:
        self._process.send_signal(number)
        self._process.wait(timeout=DEADLINE_S)


class Fleet:
    def __init__(self, folder: Path) -> None:
        discovery = folder / "discovery"
        variables = {
            "DYNAMO": "file",
            "DYN_FILE_KV": str(discovery),
            "OPENAI_MODELS": MODEL,
            "MIN_PRIORITY": "-9",
            "STOP_GRACE_PERIOD": "20",
        }
        self.front_end = FrontEnd(folder, discovery)

        self.runners: list[FleetRunner] = []

        def start(name: str) -> None:
            (folder / name).mkdir()
            (folder / name / "tmp").mkdir()
            runner = FleetRunner(folder / name, **variables, TMPDIR=str(folder / name / "tmp"))
            self.runners.append(runner)

        try:
            with ThreadPoolExecutor() as pool:
                list(pool.map(start, "abc"))
            for each in self.runners:
                self.front_end.wait_until(partial(self.reaches, each))
        except BaseException:
            self.close()
            raise

    def reaches(self, runner: FleetRunner) -> bool:
        """Send requests to the front end. Return True if this runner got one of them."""
        if MODEL not in self.front_end.models():
            return False
        count = runner.metric("cog_triton_slot_requests_total")
        streams = [Stream(self.front_end.url, f"{number} times", 4) for number in range(9)]
        for each in streams:
            each.start()
        for each in streams:
            each.join()
        return runner.metric("cog_triton_slot_requests_total") > count

    def close(self) -> None:
        self.front_end.close()
        for each in self.runners:
            each.end(signal.SIGKILL)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    made = Fleet(tmp_path_factory.mktemp("fleet"))
    yield made
    made.close()


def post(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """Send a request for MODEL; return the answer, or the error."""
    document = json.dumps({"model": MODEL, "temperature": 0, **body}).encode()
    request = urllib.request.Request(f"{url}/v1/{path}", document, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=DEADLINE_S) as answer:
            read: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        return {"status": error.code, **json.load(error)}
    return read


class Stream(threading.Thread):
    def __init__(self, url: str, prompt: str, max_tokens: int) -> None:
        super().__init__(daemon=True)
        body = {"model": MODEL, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True}
        headers = {"Content-Type": "application/json"}
        self._request = urllib.request.Request(f"{url}/v1/completions", json.dumps(body).encode(), headers)
        self.text = ""
        self.is_complete = False

    def run(self) -> None:
        with urllib.request.urlopen(self._request, timeout=DEADLINE_S) as answer:
            for line in answer:
                data = line.removeprefix(b"data: ").strip()
                if data == b"[DONE]":
                    self.is_complete = True
                elif data.startswith(b"{"):
                    self.text += "".join(each["text"] for each in json.loads(data)["choices"])


class Running:
    """Streams on all runners, most of which run; ``texts`` waits for their ends, and checks them."""

    def __init__(self, fleet: Fleet) -> None:
        self._streams = [Stream(fleet.front_end.url, prompt, LONG) for prompt in PROMPTS * 2]
        for each in self._streams:
            each.start()
        # On a busy machine the first may end before the last begins: then the others are disturbed.
        streams = self._streams
        wait_until(lambda: all(each.text for each in streams) or any(each.is_complete for each in streams))
        assert not all(each.is_complete for each in self._streams), "too short to be disturbed"

    def texts(self) -> list[str]:
        for each in self._streams:
            each.join()
        assert all(each.is_complete for each in self._streams)
        return [each.text for each in self._streams]


@pytest.fixture(scope="module")
def long_texts(fleet: Fleet) -> list[str]:
    """Texts of ``Running`` by a runner's own API."""
    url = fleet.runners[0].openai_url
    bodies = [{"prompt": prompt, "max_tokens": LONG} for prompt in PROMPTS]
    return [post(url, "completions", body)["choices"][0]["text"] for body in bodies] * 2


def both(fleet: Fleet, path: str, **body: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the choice of the front end and that of a runner's own API, which count the same prompt."""
    answers = [post(url, path, body) for url in (fleet.front_end.url, fleet.runners[0].openai_url)]
    theirs, ours = answers
    assert theirs["usage"]["prompt_tokens"] == ours["usage"]["prompt_tokens"]
    return theirs["choices"][0], ours["choices"][0]


def test_texts_are_those_of_our_own_api(fleet: Fleet) -> None:
    for prompt in PROMPTS:
        theirs, ours = both(fleet, "completions", prompt=prompt, max_tokens=40)
        assert (theirs["text"], theirs["finish_reason"]) == (ours["text"], ours["finish_reason"])
    messages = [{"role": "user", "content": "What is machine learning?"}]
    theirs, ours = both(fleet, "chat/completions", messages=messages, max_tokens=40)
    assert theirs["message"]["content"] == ours["message"]["content"]


def test_a_stop_text_ends_the_text_and_frees_the_engine(fleet: Fleet) -> None:
    whole = both(fleet, "completions", prompt=PROMPTS[0], max_tokens=60)[1]["text"]
    stop = whole[30:34]
    theirs, ours = both(fleet, "completions", prompt=PROMPTS[0], max_tokens=900, stop=stop)
    assert theirs["text"] == ours["text"] == whole.partition(stop)[0]
    assert theirs["finish_reason"] == ours["finish_reason"] == "stop"
    wait_until(lambda: not any(each.metric("cog_triton_engine_active_requests") for each in fleet.runners))


def test_log_probabilities_are_those_of_our_own_api(fleet: Fleet) -> None:
    messages = [{"role": "user", "content": "Hello"}]
    theirs, ours = both(
        fleet, "chat/completions", messages=messages, max_tokens=5, logprobs=True, top_logprobs=3
    )
    for mine, own in zip(theirs["logprobs"]["content"], ours["logprobs"]["content"], strict=True):
        assert mine["logprob"] == pytest.approx(own["logprob"], abs=1e-3)
        tops = [[each["logprob"] for each in one["top_logprobs"]] for one in (mine, own)]
        assert tops[0] == pytest.approx(tops[1], abs=1e-3)


@pytest.mark.parametrize(
    "guide",
    [
        {"guided_regex": "(yes|no){3}"},
        {"guided_choice": ["left", "right"]},
        {"response_format": {"type": "json_object"}},
    ],
    ids=lambda guide: next(iter(guide)),
)
def test_guides_are_followed(fleet: Fleet, guide: dict[str, Any]) -> None:
    messages = [{"role": "user", "content": "Which?"}]
    theirs, ours = both(fleet, "chat/completions", messages=messages, max_tokens=30, **guide)
    assert theirs["message"]["content"] == ours["message"]["content"]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"n": 2, "temperature": 1}, "E1601"),
        ({"prompt": [5] * 5000}, "E1002"),
        ({"nvext": {"cache_salt": "s"}}, "E1104"),
        ({"nvext": {"agent_hints": {"priority": 10}}}, "E1005"),
        ({"guided_regex": "("}, "E1105"),
    ],
)
def test_refusals_keep_their_codes(fleet: Fleet, body: dict[str, Any], code: str) -> None:
    answer = post(fleet.front_end.url, "completions", {"prompt": "Hi", "max_tokens": 3, **body})
    assert answer["status"] == 400
    assert answer["message"].startswith(f"{code} ")


class EngineStub:
    """An engine server of the kind vllm that answers each request with its first token, and keeps it."""

    def __init__(self, path: Path) -> None:
        self.asked: list[Submit] = []
        self._encoder = msgspec.msgpack.Encoder()
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._connection: socket.socket
        threading.Thread(target=self._serve, daemon=True).start()

    def tell(self, *adapters: str) -> None:
        """Report that these adapters are loaded."""
        ready = Ready("vllm", 300, 1000, 8, takes_priority=True, adapters=dict.fromkeys(adapters, ""))
        self._connection.sendall(frame(self._encoder, [ready]))

    def _serve(self) -> None:
        self._connection, _ = self._listener.accept()
        self.tell("loaded")
        for messages in FrameReader(self._connection, list[FromClient]).batches():
            for each in messages:
                if isinstance(each, Submit):
                    self.asked.append(each)
                    token = Tokens([(each.request_id, each.input_ids[:1])])
                    answer = frame(self._encoder, [token, Finished(each.request_id, "length")])
                    self._connection.sendall(answer)


def test_adapters_are_models_and_priorities_reach_the_engine(paced: PacedModel, tmp_path: Path) -> None:
    stub = EngineStub(tmp_path / "engine")
    start = DynamoStart(
        engine_socket=tmp_path / "engine",
        engine_kind="vllm",
        engine_dir=paced.directory,
        has_chat=False,
        chat_template=None,
        names=(MODEL, "alias"),
        adapters=("carried",),
        end_ids=(0,),
        pad_id=0,
        max_sequence_length=1000,
        max_input_length=999,
        sampling_defaults={},
        lowest_priority=-9,
        timeout_s=DEADLINE_S,
        discovery="file",
        host=HOST,
    )
    settings = load_settings({"STOP_GRACE_PERIOD": "0"})
    environment = worker_environment(settings, {"DYN_FILE_KV": str(tmp_path / "discovery")})
    command = [PYTHON, "-m", "runner.dynamo"]
    front_end = FrontEnd(tmp_path, tmp_path / "discovery")
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE) as worker:
        worker.stdin.write(start.encode())
        worker.stdin.close()
        front_end.wait_until(lambda: front_end.models() == {MODEL, "alias", "carried", "loaded"})
        hints = {"agent_hints": {"priority": 4}, "cache_salt": "salt"}
        body = {"prompt": "Hi", "max_tokens": 1, "nvext": hints}
        for model, adapter in ((MODEL, None), ("alias", None), ("carried", "carried"), ("loaded", "loaded")):
            assert "choices" in post(front_end.url, "completions", {**body, "model": model})
            asked = stub.asked[-1]
            assert (asked.lora_name, asked.priority, asked.cache_salt) == (adapter, -4, "salt")
        stub.tell()
        front_end.wait_until(lambda: front_end.models() == {MODEL, "alias", "carried"})
        worker.kill()
    front_end.close()


def test_the_router_knows_by_events_which_runner_has_a_prompt(paced: PacedModel, tmp_path: Path) -> None:
    front_end = FrontEnd(tmp_path, tmp_path / "discovery", reads_events=True)
    variables = {"DYNAMO": "file", "DYN_FILE_KV": str(tmp_path / "discovery"), "OPENAI_MODELS": MODEL}
    numbers = count(10)
    with ExitStack() as exits:
        exits.callback(front_end.close)
        runners = []
        for name, port in zip("ab", free_ports(2), strict=True):
            (tmp_path / name / "tmp").mkdir(parents=True)
            own = {"TMPDIR": str(tmp_path / name / "tmp"), "KV_EVENTS": f"tcp://*:{port}"}
            runner = FleetRunner(tmp_path / name, str(paced.directory), **variables, **own)
            exits.callback(runner.end, signal.SIGKILL)
            runners.append(runner)

        def finds_all() -> bool:
            """Ask for prompts that one runner has, by turns. Without events, half of them would be found."""
            if MODEL not in front_end.models():
                return False
            found = []
            for runner in runners * 8:
                prompt = f"{next(numbers)}{' Once upon a time there was a small engine.' * 20}"
                body = {"model": MODEL, "prompt": prompt, "max_tokens": 1}
                post(runner.openai_url, "completions", body)
                usage = post(front_end.url, "completions", body)["usage"]
                found.append((usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0)
            return min(found) > usage["prompt_tokens"] // 2

        wait_until(finds_all)


def test_a_crash_of_an_engine_moves_its_streams(fleet: Fleet, long_texts: list[str]) -> None:
    running = Running(fleet)
    victim = fleet.runners[2]
    os.kill(victim.engine_pid(), signal.SIGKILL)
    assert running.texts() == long_texts
    fleet.front_end.wait_until(lambda: fleet.reaches(victim))  # Once its engine is back.


def test_a_runner_that_stops_leaves_its_streams_complete(fleet: Fleet, long_texts: list[str]) -> None:
    running = Running(fleet)
    fleet.runners[2].end(signal.SIGTERM)
    assert running.texts() == long_texts


def test_a_runner_that_is_killed_leaves_its_streams_complete(fleet: Fleet, long_texts: list[str]) -> None:
    running = Running(fleet)
    fleet.runners[1].end(signal.SIGKILL)
    assert running.texts() == long_texts
    assert Running(fleet).texts() == long_texts  # On the one that is left.
