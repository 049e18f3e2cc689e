"""Random messages that a model may want to write, with texts that look like markers."""

import random
from typing import Any

from tests.runner.chat.families.forms import Form
from tests.runner.chat.families.writing import Wanted

_TEXTS = (
    *("a", "It is 5.", " \n", "é 日本 🎉", '"', "\\", "{", "}", "[x](y)", "<", "</", "; ", ", ", "'", "&lt;"),
    *("<tool", "<|", "[TOOL", "{}", "null", "\t", "``", "\\n", "name"),
)


def random_text(rng: random.Random, extra: tuple[str, ...], most: int = 8) -> str:
    """Without whitespace around it. ``extra``: texts that look like markers."""
    texts = [rng.choice(_TEXTS + extra) for _ in range(rng.randint(1, most))]
    return ("x" + "".join(texts)).strip()


def random_wanted(form: Form, rng: random.Random) -> Wanted:
    tokens = form.special + form.added  # Spelled in ordinary tokens they are text, also in values.
    calls = []
    for _ in range(rng.choice((0, 0, 1, 1, 2, 3))):
        arguments: dict[str, Any] = {}
        if rng.random() < 0.9:
            for key in rng.sample(("text", "number", "flag", "items", "any", "other"), rng.randint(0, 4)):
                if key == "items" and not form.has_nested_types:
                    continue
                arguments[key] = _random_value(key, rng, tokens)
        calls.append((rng.choice(("get_weather", "f", "unknown.tool")), arguments))
    has_content = not calls or (form.has_content_with_calls and rng.random() < 0.5)
    return Wanted(
        random_text(rng, tokens) if has_content else "",
        random_text(rng, tokens) if form.has_reasoning and rng.random() < 0.5 else "",
        tuple(calls),
    )


def _random_value(key: str, rng: random.Random, tokens: tuple[str, ...]) -> Any:
    if key == "number":
        return rng.choice((0, -1, 2.5, 10**20))
    if key == "flag":
        return rng.choice((True, False, None))
    if key == "items":
        return [{"a": [1, random_text(rng, tokens, 2)]}, []]
    return random_text(rng, tokens)


SCHEMA = {
    "text": {"type": "string"},
    "number": {"type": "number"},
    "flag": {"type": ["boolean", "null"]},
    "items": {"type": "array"},
    "any": {"type": ["string", "null"]},
}
