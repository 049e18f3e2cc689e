"""Options of an engine: texts from Triton's model parameters, read by the parsers of an engine kind."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from errors.engines import EngineStartFailed
from errors.settings import InvalidSetting

KV_EVENTS_OPTION = "kv_events_config"
"""Option for engines that publish KV events: vLLM's argument of that name, as JSON."""

Parser = Callable[[str], Any]
"""A function that raises ValueError with what is expected."""


def read_object(path: Path, engine_kind: str) -> dict[str, Any]:
    """Read a JSON object of the engine; it is empty if there is no such file. Raises EngineStartFailed."""
    try:
        document = json.loads(path.read_text()) if path.exists() else {}
    except (OSError, ValueError) as exc:
        raise EngineStartFailed(engine_kind=engine_kind, reason=f"{path} can't be read: {exc}") from exc
    if not isinstance(document, dict):
        raise EngineStartFailed(engine_kind=engine_kind, reason=f"{path} is not a JSON object")
    return document


def parse_options(options: Mapping[str, str], parsers: Mapping[str, Parser]) -> dict[str, Any]:
    """Parse the options that have a parser and are not empty. Raises E1006."""
    parsed: dict[str, Any] = {}
    for name, parse in parsers.items():
        if text := options.get(name):
            try:
                parsed[name] = parse(text)
            except ValueError as exc:
                raise InvalidSetting(name=name, expected=str(exc), value=text) from exc
    return parsed


def integer(minimum: int) -> Parser:
    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and int(text) >= minimum):
            raise ValueError(f"a whole number of at least {minimum}")
        return int(text)

    return parse


def fraction(text: str, *, is_above_zero: bool = False) -> float:
    with suppress(ValueError):
        value = float(text)
        if 0 <= value <= 1 and (value or not is_above_zero):
            return value
    raise ValueError("a number above 0 and at most 1" if is_above_zero else "a number from 0 to 1")


def switch(text: str) -> bool:
    if text.lower() not in ("true", "1", "false", "0"):
        raise ValueError("true or false")
    return text.lower() in ("true", "1")


def one_of(values: Mapping[str, Any]) -> Parser:
    """Make a parser that takes the names in any case and returns their values."""

    def parse(text: str) -> Any:
        if text.lower() not in values:
            raise ValueError(f"one of {', '.join(values)}")
        return values[text.lower()]

    return parse
