"""Generated files are written where they are stale, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.generated import write


def test_only_a_stale_file_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new, stale, current = (tmp_path / name for name in ("folder/new", "stale", "current"))
    stale.write_text("old")
    current.write_text("text")
    write(dict.fromkeys((new, stale, current), "text"))
    assert new.read_text() == stale.read_text() == "text"
    assert capsys.readouterr().out == f"written: {new}\nwritten: {stale}\n"
