"""Rules of a grammar in llguidance's Lark, about markers, text and the client's schemas."""

import json
from collections.abc import Iterable

import msgspec

from runner.chat.families.markers import Markers, is_special
from runner.engines.protocol.checks import check_guide, check_guide_length
from runner.engines.protocol.messages import ChatForm, Guide

SPACE = "SPACE"
"""Rule of all grammars: whitespace between markers."""
_ANY = "/(?s:.*)/"


class Rules:
    """Rules of one grammar. ``hidden``: the markers that no text of the answer may spell."""

    def __init__(self, markers: Markers, hidden: Iterable[str]) -> None:
        self.markers = markers
        self._hidden = [each for each in hidden if not is_special(markers.written(each)[:1])]
        """Markers that text could spell: a special token is never part of a text."""
        self._rules = {SPACE: r"/[ \n]{0,2}/"}
        self._num_texts = 0
        self._part_bytes = 0
        self._parts: list[tuple[str, Guide]] = []

    def add(self, name: str, expression: str) -> str:
        self._rules[name] = expression
        return name.partition("[")[0]

    def is_token(self, marker: str) -> bool:
        return self.markers.begins_with_token(marker)

    def marker(self, text: str) -> str:
        """Return an expression for a marker, for a text with markers in it, or for an empty text."""
        ids = self.markers.ids
        found = self.markers.split(text)
        return " ".join(f"<[{ids[each]}]>" if each in ids else literal(each) for each in found)

    def text(self, name: str = "TEXT", *, bare: str = "", end: str = "") -> str:
        """Return text without hidden markers, not beginning with a character of ``bare``, up to ``end``."""
        hidden = " | ".join(literal(each) for each in self._hidden if each != end)
        expression = "ANY" + (f" & ~(ANY ({hidden}) ANY)" if hidden else "")
        if bare:
            expression += f" & ~(/\\s*/ ({' | '.join(map(literal, bare))}) ANY)"
        self._rules["ANY"] = _ANY
        return self.add(name, f"({expression}) {literal(end)}" if end else expression)

    def thought(self, budget: int | None) -> str:
        """Return a rule for reasoning up to a token that ends it."""
        limit = "" if budget is None else f"[max_tokens={budget}]"
        return self.add(f"thought{limit}", self.text("THOUGHT"))

    def text_before(self, before_end: str, end: str, text: str | None = None) -> str:
        """Return a text and the marker ``end`` after it. ``text``: the text's terminal; None: any text."""
        self._num_texts += 1
        name, self._rules["ANY"] = f"VALUE_{self._num_texts}", _ANY
        free = text or "ANY"
        if not is_special(self.markers.written(end)[:1]):
            free += f" & ~(ANY {literal(end)} ANY)"
        if self.is_token(end) and not before_end:
            return f"{self.add(name, free)} {self.marker(end)}"
        lazy = before_end if self.is_token(end) else f"{before_end}{end}"
        value = self.add(f"value_{self._num_texts}[lazy]", self.add(name, f"({free}) {literal(lazy)}"))
        return f"{value} {self.marker(end)}" if self.is_token(end) else value

    def part(self, place: str, guide: Guide) -> str:
        """Add a guide. Raises E1105 if it is too long, alone or together with the others."""
        check_guide(guide)
        # NOTE: check the length now, as each parameter's schema repeats the shared definitions.
        self._part_bytes += len(guide.text)
        check_guide_length("chat_form", self._part_bytes)
        self._parts.append((place, guide))
        return f"part_{len(self._parts) - 1}"

    def schema(self, place: str, schema: object) -> str:
        return self.part(place, Guide("json_schema", msgspec.json.encode(schema).decode()))

    def guide(self) -> Guide:
        """Return the guide. Raises E1105 if it is too long."""
        rules = "\n".join(f"{name}: {expression}" for name, expression in self._rules.items())
        guide = ChatForm(rules, self._parts).guide()
        check_guide(guide)
        return guide


def literal(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
