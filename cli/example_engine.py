"""The engine of the tiny example model, built when it is first needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from builder.build import OWN_FOLDER, build
from engine.machine.root import SOURCE_ROOT

DEMO_DIR = SOURCE_ROOT / ".demo"


def built_example_engine(report: Callable[[str], None]) -> Path:
    """The path of the tar. It is rebuilt if the example has changed."""
    config = SOURCE_ROOT / "builder" / "examples" / "tiny" / "config.yaml"
    tar = DEMO_DIR / "tiny.tar"
    sources = [path for path in config.parent.rglob("*") if path.is_file()]
    if not tar.is_file() or tar.stat().st_mtime < max(path.stat().st_mtime for path in sources):
        DEMO_DIR.mkdir(exist_ok=True)
        build(config, tar, base_dir=OWN_FOLDER, report=report)
    return tar
