"""The fast tokenizer of an engine: the model's own, or one converted from its slow files."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from builder.engine_environment import run_conversion
from builder.weights.checkpoint import read_object
from builder.weights.files import place
from builder.weights.model_files import Model, supporting_names, tokenizer_names
from errors.build import ConversionFailed
from errors.build_config import TokenizerUnusable

_SLOW_FILES = ("tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")


def place_tokenizer(model: Model, directory: Path, *, scratch: Path, trust_remote_code: bool) -> int:
    """Put the model's tokenizer into ``directory``, as a fast one, and return the vocabulary size."""
    if "tokenizer.json" in model.files:
        for name in tokenizer_names(model.files):
            place(model.files[name], directory / name)
    else:
        _convert(model, directory, scratch, trust_remote_code=trust_remote_code)
    tokenizer = _load(model.name, directory / "tokenizer.json")
    if "tokenizer_config.json" in model.files:
        read_object(model, "tokenizer_config.json")
    elif not (directory / "tokenizer_config.json").exists():
        _write_config(model, tokenizer, directory / "tokenizer_config.json")
    return int(tokenizer.get_vocab_size(with_added_tokens=True))


def _load(model_name: str, path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as exc:  # NOTE: the class that tokenizers raises
        problem = f"its tokenizer.json can't be loaded ({exc})"
        raise TokenizerUnusable(model=model_name, problem=problem) from exc
    if tokenizer.get_vocab_size(with_added_tokens=True) == 0:
        raise TokenizerUnusable(model=model_name, problem="its vocabulary is empty")
    return tokenizer


def _convert(model: Model, directory: Path, scratch: Path, *, trust_remote_code: bool) -> None:
    if not any(name in model.files for name in _SLOW_FILES):
        problem = f"it has neither tokenizer.json nor one of {', '.join(_SLOW_FILES)}"
        raise TokenizerUnusable(model=model.name, problem=problem)
    slow, fast = scratch / "slow-tokenizer", scratch / "fast-tokenizer"
    slow.mkdir()
    fast.mkdir()
    for name in supporting_names(model.files, code=trust_remote_code):
        place(model.files[name], slow / name)
    options = ["--trust-remote-code"] if trust_remote_code else []
    what = f"making a fast tokenizer of {model.name}'s slow one"
    try:
        run_conversion("tokenizer_to_fast.py", [slow, fast, *options], what=what, folder=scratch)
    except ConversionFailed as exc:
        raise TokenizerUnusable(model=model.name, problem=exc.sentence) from exc
    if not (fast / "tokenizer.json").exists():
        raise TokenizerUnusable(model=model.name, problem="transformers wrote no tokenizer.json for it")
    made = {path.relative_to(fast).as_posix(): path for path in fast.rglob("*") if path.is_file()}
    for name in tokenizer_names(made):
        place(made[name], directory / name)


def _write_config(model: Model, tokenizer: Tokenizer, path: Path) -> None:
    """Write the minimum that transformers needs beside tokenizer.json: the class and the special tokens."""
    config: dict[str, Any] = {"tokenizer_class": "PreTrainedTokenizerFast"}
    known = read_object(model, "config.json") if "config.json" in model.files else {}
    for role in ("bos", "eos", "pad"):
        if (token := _token(known, f"{role}_token_id", tokenizer)) is not None:
            config[f"{role}_token"] = token
    path.write_text(json.dumps(config, indent=2) + "\n")


def _token(known: Mapping[str, Any], key: str, tokenizer: Tokenizer) -> str | None:
    value = known.get(key)
    first = value[0] if isinstance(value, list) and value else value
    if not isinstance(first, int) or isinstance(first, bool) or first < 0:
        return None
    return tokenizer.id_to_token(first)
