"""What reading costs is measured for every family, in each of its forms."""

from __future__ import annotations

import pytest

from perf.model.reading import main
from runner.chat.families.recognition import FAMILIES


@pytest.mark.slow
def test_every_family_is_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--tokens", "20", "--rounds", "1"]) == 0
    lines = capsys.readouterr().out.splitlines()[2:]
    rows = [line.strip("| ").split(":")[0] for line in lines]
    assert {*rows} == FAMILIES.keys()
    assert all(line.count("|") == 4 for line in lines)
