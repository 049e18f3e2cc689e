"""Engines to measure with. Paced ones have the tiny model's tokenizer, and make tokens at any rate."""

from collections.abc import Mapping
from pathlib import Path

import yaml

from builder.build import build
from engine.cache.store import open_engine

MAX_SEQUENCE_TOKENS = 40960
_MAX_BATCH_SIZE = 1024


def paced_engine(folder: Path, tokens_per_second: float) -> Path:
    """Build an engine and return its folder. Each of its streams has this rate (0: no limit)."""
    name = f"paced-{tokens_per_second:g}"
    config = {
        "engine": "paced",
        "model_path": "examples/tiny/model",
        "paced": {"tokens_per_second": tokens_per_second},
        "max_seq_len": MAX_SEQUENCE_TOKENS,
        "max_batch_size": _MAX_BATCH_SIZE,
    }
    return built(folder, name, config)


def built(folder: Path, name: str, config: Mapping[str, object]) -> Path:
    """Build the engine of a build config, whose base is ``folder``; return its folder in a cache there."""
    path, tar = folder / f"{name}.yaml", folder / f"{name}.tar"
    path.write_text(yaml.safe_dump(config))
    build(path, tar, report=lambda line: None)
    return open_engine(tar, folder / "cache").path
