"""Other versions of the LLM API, as far as they differ in what the adapter uses (``versions.json``)."""

from __future__ import annotations

import functools
import inspect
import json
import os
from importlib import import_module
from pathlib import Path
from typing import Any


def become() -> None:
    """Make the stand-in that of ``LLM_API_VERSION``."""
    name = os.environ.get("LLM_API_VERSION")
    versions = json.loads((Path(__file__).parents[1] / "versions.json").read_text())
    if name is not None:
        for path, parts in versions[name]["parts"].items():
            module, _, last = path.rpartition(".")
            thing = getattr(import_module(f"tensorrt_llm{module}"), last)
            for part, parameters in parts.items():
                if parameters is None:
                    _remove(thing, part)
                else:
                    _limit(thing, part, parameters)


def _remove(thing: Any, part: str) -> None:
    getattr(thing, "__dataclass_fields__", {}).pop(part, None)
    if part in vars(thing):
        delattr(thing, part)


def _limit(thing: Any, method: str, names: list[str]) -> None:
    """Give the method exactly these parameters. Those that the stand-in does not know are optional."""
    original = getattr(thing, method)
    known = inspect.signature(original).parameters
    optional = functools.partial(
        inspect.Parameter, kind=inspect.Parameter.POSITIONAL_OR_KEYWORD, default=None
    )
    signature = inspect.Signature([known.get(name) or optional(name) for name in ("self", *names)])

    @functools.wraps(original)
    def limited(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        return original(**{name: value for name, value in bound.arguments.items() if name in known})

    limited.__signature__ = signature  # type: ignore[attr-defined]
    setattr(thing, method, limited)
