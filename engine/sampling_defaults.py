"""Sampling parameters of a model's ``generation_config.json``, for requests that do not set them.

As in vLLM, ``do_sample`` is ignored: a model that has it and no temperature is sampled with the API's.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from engine.end_ids import read_json
from errors.engine_tar import GenerationConfigInvalid

GENERATION_CONFIG = "generation_config.json"
LIMITS: Mapping[str, tuple[type, float, float]] = {
    "temperature": (float, 0, 2),
    "top_p": (float, 0, 1),
    "top_k": (int, -1, (1 << 31) - 1),
    "min_p": (float, 0, 1),
    "repetition_penalty": (float, 0.01, 1e6),
    "max_new_tokens": (int, 1, (1 << 31) - 1),
}
"""Type and limits, as in the API."""


def read_sampling_defaults(engine_dir: Path) -> dict[str, float]:
    """Read the defaults of the engine in ``engine_dir``. Raises E1312, and E1329 for an impossible value."""
    path = engine_dir / GENERATION_CONFIG
    return sampling_defaults(read_json(path), str(path))


def sampling_defaults(document: Mapping[str, Any], place: str) -> dict[str, float]:
    """Check and return the defaults of a generation config that was read from ``place``."""
    given = {name: document[name] for name in LIMITS if document.get(name) is not None}
    for name, value in given.items():
        kind, low, high = LIMITS[name]
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not low <= value <= high or kind(value) != value:
            noun = "a number" if kind is float else "a whole number"
            expected = f"{noun} from {low:g} to {high:g}"
            raise GenerationConfigInvalid(place=place, name=name, expected=expected, value=repr(value)[:40])
        given[name] = kind(value)
    return given
