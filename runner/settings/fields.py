"""Fields of the settings: environment variables, and the types that several of them have."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BeforeValidator, Field


def _texts(value: object) -> object:
    return tuple(filter(None, map(str.strip, value.split(",")))) if isinstance(value, str) else value


Texts = Annotated[tuple[str, ...], BeforeValidator(_texts)]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[float, Field(ge=0.001, allow_inf_nan=False)]
URL = Annotated[str, Field(pattern=r"^https?://[^/\s,]+\S*$")]


def variable(name: str, default: Any, meaning: str, **limits: Any) -> Any:
    """The field of an environment variable. ``meaning``: for docs/settings.md."""
    return Field(default, title=name, description=meaning, **limits)
