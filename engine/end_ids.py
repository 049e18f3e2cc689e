"""End-of-text token ids, read from the files of a model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from errors.engine_tar import EngineUnreadable


def read_end_ids(engine_dir: Path, token_to_id: Callable[[str], int | None]) -> tuple[int, ...]:
    """The ids, the most common first; empty if no file has them. Raises EngineUnreadable."""
    for name in ("generation_config.json", "config.json"):
        if ids := as_ids(read_json(engine_dir / name).get("eos_token_id")):
            return ids
    token_id = tokenizer_end_id(engine_dir, token_to_id)
    return () if token_id is None else (token_id,)


def tokenizer_end_id(engine_dir: Path, token_to_id: Callable[[str], int | None]) -> int | None:
    """The one that the tokenizer's configuration names. Raises EngineUnreadable."""
    token = read_json(engine_dir / "tokenizer_config.json").get("eos_token")
    text = token.get("content") if isinstance(token, dict) else token
    try:
        return token_to_id(text) if isinstance(text, str) else None
    except UnicodeEncodeError:  # JSON may hold half of a character, which is no token.
        return None


def as_ids(value: object) -> tuple[int, ...]:
    """Of a number, a list of them, or nothing."""
    values = value if isinstance(value, list) else [value]
    return tuple(each for each in values if isinstance(each, int))


def read_json(path: Path) -> dict[str, Any]:
    """An object; empty where there is no such file. Raises EngineUnreadable."""
    if not path.is_file():
        return {}
    try:
        document = json.loads(path.read_text())
    except (ValueError, RecursionError) as exc:
        raise EngineUnreadable(place=path, reason=f"it is not JSON ({exc})") from exc
    return document if isinstance(document, dict) else {}
