"""What this runner relies on is in the real coglet; a coglet that lacks it is refused by name."""

import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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


@contextmanager
def streaming(folder: Path, **extra: str) -> Iterator[tuple[CogServer, Callable[[str], dict[str, Any]]]]:
    """Provide a real coglet with ``streaming_runner``, and a function that makes a prediction."""
    (port,) = free_ports(1)
    variables = {"COG_PREDICT_TYPE_STUB": f"{RUNNER}:Runner", **extra}
    server = CogServer("runner", host=HOST, port=port, log_path=folder / "log", extra=variables)

    def predict(prompt: str) -> dict[str, Any]:
        url, body = f"{server.url}/predictions/{prompt}", {"input": {"prompt": prompt}}
        return httpx.put(url, json=body, timeout=DEADLINE_S).json()

    try:
        server.wait_ready(DEADLINE_S)
        yield server, predict
    finally:
        server.stop()


@pytest.mark.servers
def test_run_is_in_coglets_thread_its_source_in_the_loop_and_the_id_and_errors_are_known(
    tmp_path: Path,
) -> None:
    with streaming(tmp_path) as (_, predict):
        found = json.loads("".join(predict("where")["output"]))
        refused, waited = predict("refuse"), predict("wait")
    assert found == {"run": False, "source": True, "id": "where"}
    assert refused["status"] == waited["status"] == "failed"
    assert ": E1006 InvalidSetting: prompt must be another" in refused["error"]
    assert "only its PredictionStream" in waited["error"]


@pytest.mark.servers
def test_without_the_context_variable_predictions_have_no_id_and_stream(tmp_path: Path) -> None:
    package = tmp_path / "other" / "coglet"
    shutil.copytree(LIBRARY.parent, package)
    renamed(PREDICTION_ID, package / LIBRARY.name)
    with streaming(tmp_path, PYTHONPATH=f"{package.parent}:{SOURCE_ROOT}") as (server, predict):
        found = json.loads("".join(predict("where")["output"]))
    assert found == {"run": False, "source": True, "id": ""}
    assert f"lacks {PREDICTION_ID}" in server.log_path.read_text()
