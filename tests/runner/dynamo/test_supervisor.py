"""The Dynamo worker as a child of the runner: its settings, its environment, a start that fails."""

import asyncio
import sys
from pathlib import Path

import pytest

from engine.directory import load
from errors.coded_error import CodedError
from runner.dynamo import supervisor
from runner.dynamo.supervisor import DynamoWorker, kv_event_source, worker_environment
from runner.generation.model import load_model_facts
from runner.settings.settings import Settings, load_settings
from tests.runner.paced_engine import PacedModel


def settings_of(paced: PacedModel, **variables: str) -> Settings:
    return load_settings({"ENGINE_DIR": str(paced.directory), "DYNAMO": "file", **variables})


def make_worker(
    paced: PacedModel, settings: Settings, engine_socket: Path | None = Path("/nowhere")
) -> DynamoWorker:
    engine = load(paced.directory)
    model = load_model_facts(engine, settings)
    return DynamoWorker(settings, engine, model, engine_socket, print, lambda failure: True)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("DYNAMO", "zookeeper"),
        ("DYNAMO_HOST", "0.0.0.0"),
        ("DYNAMO_HOST", "host"),
        ("DYNAMO_PYTHON", "/none"),
    ],
)
def test_wrong_settings_are_refused_by_name(paced: PacedModel, name: str, value: str) -> None:
    with pytest.raises(CodedError, match=f"E1006 InvalidSetting: {name} ") as raised:
        settings_of(paced, **{name: value})
    assert value in str(raised.value)


def test_the_worker_listens_on_its_host_and_dynamos_own_variables_win(paced: PacedModel) -> None:
    settings = settings_of(paced, DYNAMO_HOST="127.0.0.9", STOP_GRACE_PERIOD="10")
    given = {
        "DYN_FILE_KV": "fleet",
        "DYN_SYSTEM_PORT": "9090",
        "ETCD_AUTH_PASSWORD": "p",
        "API_KEYS": "k",
        "PATH_X": "y",
    }
    environment = worker_environment(settings, given)
    names = ("DYN_TCP_RPC_HOST", "DYN_EVENT_PLANE_HOST", "DYN_SYSTEM_HOST")
    assert {environment[name] for name in names} == {"127.0.0.9"}
    assert environment["DYN_GRACEFUL_SHUTDOWN_GRACE_PERIOD_SECS"] == "2"
    assert (environment["DYN_SYSTEM_PORT"], environment["ETCD_AUTH_PASSWORD"]) == ("9090", "p")
    assert environment["DYN_FILE_KV"] == str(Path.cwd() / "fleet")
    assert "API_KEYS" not in environment


def test_there_must_be_an_engine_server(paced: PacedModel) -> None:
    with pytest.raises(CodedError, match="E1006 InvalidSetting: DYNAMO "):
        make_worker(paced, settings_of(paced, DYNAMO_PYTHON=sys.executable), engine_socket=None)


def test_a_missing_environment_is_told(paced: PacedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervisor, "_ENVIRONMENT", "no-environment")
    with pytest.raises(CodedError, match=r"E1008 .*make dynamo"):
        make_worker(paced, settings_of(paced))


def test_a_start_that_fails_is_a_coded_error(paced: PacedModel) -> None:
    """A Python that lacks Dynamo."""

    async def start() -> None:
        worker = make_worker(paced, settings_of(paced, DYNAMO_PYTHON=sys.executable))
        worker.begin()
        try:
            await worker.wait_ready()
        finally:
            await worker.stop()

    with pytest.raises(CodedError, match=r"E2700 .*No module named 'dynamo'"):
        asyncio.run(start())


@pytest.mark.parametrize(
    ("endpoint", "found"),
    [
        ("tcp://*:5557", ("tcp://127.0.0.1:5557", "t")),
        ("ipc:///run/kv", ("ipc:///run/kv", "t")),
        ("tcp://collector:5557", None),
        ("", None),
    ],
)
def test_a_worker_gets_events_where_the_engine_listens(endpoint: str, found: tuple[str, str] | None) -> None:
    assert kv_event_source(load_settings({"KV_EVENTS": endpoint, "KV_EVENTS_TOPIC": "t"})) == found
