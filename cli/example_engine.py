"""The engine of the tiny model that ships with the project, built when it is first wanted."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from builder.build import OWN_FOLDER, build
from engine.machine.root import SOURCE_ROOT

EXAMPLES = SOURCE_ROOT / "builder" / "examples"
DEMO_DIR = SOURCE_ROOT / ".demo"


def built_example_engine(report: Callable[[str], None]) -> Path:
    """The tar's path. It is built again if the example changed since."""
    config = EXAMPLES / "tiny" / "config.yaml"
    tar = DEMO_DIR / "tiny.tar"
    sources = [path for path in config.parent.rglob("*") if path.is_file()]
    if not tar.is_file() or tar.stat().st_mtime < max(path.stat().st_mtime for path in sources):
        DEMO_DIR.mkdir(exist_ok=True)
        build(config, tar, base_dir=OWN_FOLDER, report=report)
    return tar
