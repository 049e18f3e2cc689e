"""Which family a model is of: the first whose signs are in its chat template or its tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from tokenizers import Tokenizer

from errors.settings import InvalidSetting
from runner.chat.families.family import Family
from runner.chat.families.hermes import HERMES

NO_FAMILY = "none"

_SIGNS: Sequence[tuple[Family, tuple[str, ...]]] = ((HERMES, ("<tool_call>",)),)
"""In the order of checks. All signs of a row have to be in the template, or be tokens of the tokenizer."""

FAMILIES = {family.name: family for family, _ in _SIGNS}


def find_family(name: str | None, template: str, tokenizer: Tokenizer) -> Family | None:
    """The family ``name``, or else the one that is recognized. Raises E1006 for an unknown name."""
    if name == NO_FAMILY:
        return None
    if name is not None:
        if name not in FAMILIES:
            expected = f"{', '.join(FAMILIES)} or {NO_FAMILY}"
            raise InvalidSetting(name="CHAT_FAMILY", expected=expected, value=name)
        return FAMILIES[name]
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    for family, signs in _SIGNS:
        if all(sign in template or sign in added for sign in signs):
            return family
    return None
