"""How the texts of environment variables are read; one that does not fit is a ValueError with what would."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any


def at_least(number: type[int] | type[float], minimum: float) -> Callable[[str], Any]:
    noun = "a whole number" if number is int else "a number"

    def parse(text: str) -> Any:
        try:
            value = number(text)
        except ValueError:
            value = None
        if value is None or not minimum <= value < float("inf"):
            raise ValueError(f"{noun} of at least {minimum:g}")
        return value

    return parse


def port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise ValueError("a port, 1 to 65535")
    return int(text)


def port_or_none(text: str) -> int:
    if text == "0":
        return 0
    try:
        return port(text)
    except ValueError:
        raise ValueError("a port, 1 to 65535, or 0 for none") from None


def texts(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))


def existing_file(text: str) -> Path:
    if not Path(text).is_file():
        raise ValueError("a file that exists")
    return Path(text)


def boolean(text: str) -> bool:
    if text.lower() not in ("1", "0", "true", "false", "yes", "no", "on", "off"):
        raise ValueError("true or false")
    return text.lower() in ("1", "true", "yes", "on")


def existing_directory(text: str) -> Path:
    if not Path(text).is_dir():
        raise ValueError("a folder that exists")
    return Path(text)


def http_url(text: str) -> str:
    if not re.fullmatch(r"https?://[^/\s,]+\S*", text):
        raise ValueError("an http or https URL")
    return text


def otlp_protocol(text: str) -> str:
    if text != "http/protobuf":
        raise ValueError("http/protobuf, the only one that the runner speaks, or unset")
    return text


def log_format(text: str) -> str:
    if text not in ("json", "console"):
        raise ValueError("json or console")
    return text


def program(text: str) -> str:
    if not os.access(text, os.X_OK) or Path(text).is_dir():
        raise ValueError("the path of a Python that can be run")
    return text
