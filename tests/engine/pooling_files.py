"""The files of sentence-transformers that make an embedding model of a model."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

MODULE = "sentence_transformers.models"


def write_pooling(
    folder: Path,
    mode: str = "mean_tokens",
    size: int = 64,
    *,
    modules: tuple[str, ...] = ("Transformer", "Pooling", "Normalize"),
    max_tokens: int | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """``mode``: as in ``pooling_mode_<mode>``. ``config``: added to the model's config.json."""
    listed = [
        {"idx": index, "type": f"{MODULE}.{name}", "path": f"{index}_{name}" if index else ""}
        for index, name in enumerate(modules)
    ]
    write(folder / "modules.json", listed)
    names = ("cls_token", "mean_tokens", "max_tokens", "lasttoken")
    pooling: dict[str, Any] = {f"pooling_mode_{name}": name == mode for name in names}
    write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": size, **pooling})
    if max_tokens is not None:
        write(folder / "sentence_bert_config.json", {"max_seq_length": max_tokens, "do_lower_case": False})
    if config is not None:
        path = folder / "config.json"
        known = json.loads(path.read_text()) if path.exists() else {}
        write(path, {**known, **config})
    return folder


def write(path: Path, document: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
