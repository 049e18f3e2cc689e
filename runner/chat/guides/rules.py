"""Rules of a grammar in llguidance's Lark, about markers, text and the client's schemas."""

from __future__ import annotations

import json
from collections.abc import Iterable

import msgspec

from runner.chat.families.markers import Markers, is_special
from runner.engines.protocol.checks import check_guide
from runner.engines.protocol.messages import ChatForm, Guide

SPACE = "SPACE"
"""Of all grammars: whitespace between markers."""
_ANY = "/(?s:.*)/"


class Rules:
    """Collects the rules of one grammar. ``hidden``: the markers that no text of the answer may spell."""

    def __init__(self, markers: Markers, hidden: Iterable[str]) -> None:
        self.markers = markers
        self._hidden = [each for each in hidden if not is_special(markers.written(each)[:1])]
        """A special token is never part of a text."""
        self._rules = {SPACE: r"/[ \n]{0,2}/"}
        self._parts: list[tuple[str, Guide]] = []

    def add(self, name: str, expression: str) -> str:
        self._rules[name] = expression
        return name.partition("[")[0]

    def is_token(self, marker: str) -> bool:
        return marker in self.markers.ids

    def marker(self, marker: str) -> str:
        """An expression for a marker, or for an empty text."""
        id_ = self.markers.ids.get(marker)
        return f"<[{id_}]>" if id_ is not None else literal(marker) if marker else ""

    def text(self, name: str = "TEXT", *, bare: str = "", end: str = "") -> str:
        """Text without hidden markers, that does not begin with a character of ``bare``, up to ``end``."""
        hidden = " | ".join(literal(each) for each in self._hidden if each != end)
        expression = "ANY" + (f" & ~(ANY ({hidden}) ANY)" if hidden else "")
        if bare:
            expression += f" & ~(/\\s*/ ({' | '.join(map(literal, bare))}) ANY)"
        self._rules["ANY"] = _ANY
        return self.add(name, f"({expression}) {literal(end)}" if end else expression)

    def part(self, place: str, guide: Guide) -> str:
        """Raises E1105 for a guide that is too long."""
        check_guide(guide)
        self._parts.append((place, guide))
        return f"part_{len(self._parts) - 1}"

    def schema(self, place: str, schema: object) -> str:
        return self.part(place, Guide("json_schema", msgspec.json.encode(schema).decode()))

    def guide(self) -> Guide:
        """Raises E1105 for one that is too long."""
        rules = "\n".join(f"{name}: {expression}" for name, expression in self._rules.items())
        guide = ChatForm(rules, self._parts).guide()
        check_guide(guide)
        return guide


def literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
