"""The variables of Cog's server in the builder's image."""

import runpy

import pytest

from builder.cog_server import main

NAMES = ("PORT", "COG_MAX_CONCURRENCY", "TOKIO_WORKER_THREADS")


@pytest.mark.parametrize("value", ["abc", "", "0", "5000.0", "70000", "٣", "9" * 5000])
@pytest.mark.parametrize("name", NAMES)
def test_an_invalid_variable_is_e1006_before_anything_starts(
    name: str, value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, value)
    monkeypatch.setattr(runpy, "run_module", lambda *_, **__: pytest.fail("it was started"))
    with pytest.raises(SystemExit) as ended:
        main()
    line = capsys.readouterr().err
    assert line.startswith(f"E1006 InvalidSetting: {name} must be a whole number from 1 to ")
    assert (ended.value.code, line.count("\n")) == (2, 1)
    assert len(line) < 1000


def test_cogs_server_runs_with_valid_variables_or_none(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(runpy, "run_module", lambda name, **_: started.append(name))
    for value in ("1", "1024", None):
        for name in NAMES:
            monkeypatch.delenv(name, raising=False)
            if value is not None:
                monkeypatch.setenv(name, value)
        main()
    assert started == ["cog.server.http"] * 3
