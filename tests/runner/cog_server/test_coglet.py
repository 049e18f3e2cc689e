"""What this runner relies on is in the real coglet; a coglet that lacks it is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coglet
import httpx
import pytest

from engine.machine.root import SOURCE_ROOT
from errors.settings import MissingRequirement
from runner.cog_server.coglet import (
    PREDICTION_ID,
    RELIANCES,
    SUPPORTED_VERSION,
    check_coglet,
)
from runner.cog_server.launch import CogServer
from tests.runner.servers import DEADLINE_S, HOST, free_ports

LIBRARY = Path(str(coglet._impl.__file__))
RUNNER = Path(__file__).with_name("streaming_runner.py")


def renamed(name: str, target: Path) -> Path:
    """Return a coglet that works, but calls ``name`` another name."""
    other = name[:-1] + ("x" if name[-1] != "x" else "y")
    target.write_bytes(LIBRARY.read_bytes().replace(name.encode(), other.encode()))
    return target


@pytest.mark.parametrize("reliance", RELIANCES, ids=lambda reliance: reliance.name)
def test_a_coglet_that_lacks_something_is_told_by_name_and_version(reliance: Any, tmp_path: Path) -> None:
    library = renamed(reliance.name, tmp_path / "library.so")
    logged: list[str] = []
    if reliance.is_essential:
        with pytest.raises(MissingRequirement, match="E1008") as raised:
            check_coglet(logged.append, library)
        logged.append(str(raised.value))
    else:
        check_coglet(logged.append, library)
        assert logged[0].startswith("warning: ")
    (line,) = logged
    for part in (reliance.name, reliance.lost, f"coglet {coglet.__version__}", SUPPORTED_VERSION):
        assert part in line


def test_another_version_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(coglet, "__version__", "0.99.0")
    logged: list[str] = []
    check_coglet(logged.append)
    assert logged == [
        f"warning: Cog 0.23.1 with coglet 0.99.0 is installed; Cog {SUPPORTED_VERSION} is supported"
    ]


def other_coglet(folder: Path, name: str) -> dict[str, str]:
    """Variables of a server whose coglet calls ``name`` another name."""
    package = folder / "coglet"
    shutil.copytree(LIBRARY.parent, package)
    renamed(name, package / LIBRARY.name)
    return {"PYTHONPATH": f"{folder}:{SOURCE_ROOT}"}


class Streaming:
    """A real coglet with ``streaming_runner``."""

    def __init__(self, folder: Path, **extra: str) -> None:
        (port,) = free_ports(1)
        variables = {"COG_PREDICT_TYPE_STUB": f"{RUNNER}:Runner", **extra}
        self.server = CogServer("runner", host=HOST, port=port, log_path=folder / "log", extra=variables)
        self.url = f"{self.server.url}/predictions"
        self.server.wait_ready(DEADLINE_S)

    def predict(self, prompt: str) -> dict[str, Any]:
        body = {"input": {"prompt": prompt}}
        document: dict[str, Any] = httpx.put(f"{self.url}/{prompt}", json=body, timeout=DEADLINE_S).json()
        return document


@pytest.fixture(scope="module")
def streaming(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Streaming]:
    streaming = Streaming(tmp_path_factory.mktemp("streaming"))
    yield streaming
    streaming.server.stop()


@pytest.mark.servers
def test_run_is_in_coglets_thread_its_source_in_the_loop_and_the_id_is_known(streaming: Streaming) -> None:
    answer = streaming.predict("where")
    assert json.loads("".join(answer["output"])) == {"run": False, "source": True, "id": "where"}


@pytest.mark.servers
def test_what_run_raises_is_the_predictions_error(streaming: Streaming) -> None:
    refused = streaming.predict("refuse")
    assert refused["status"] == "failed"
    assert ": E1006 InvalidSetting: prompt must be another" in refused["error"]
    waited = streaming.predict("wait")
    assert (waited["status"], "only its PredictionStream" in waited["error"]) == ("failed", True)


@pytest.mark.servers
def test_without_the_context_variable_predictions_have_no_id_and_stream(tmp_path: Path) -> None:
    streaming = Streaming(tmp_path, **other_coglet(tmp_path / "other", PREDICTION_ID))
    try:
        answer = streaming.predict("where")
        assert json.loads("".join(answer["output"])) == {"run": False, "source": True, "id": ""}
        assert f"lacks {PREDICTION_ID}" in streaming.server.log_path.read_text()
    finally:
        streaming.server.stop()
