"""Families by real templates: ``python -m tests.runner.chat.families.many_templates FOLDER [FILE:NAME..]``.

Prints JSON: by template, the family and whether it reads the calls that the template writes. With the FILEs
of tokenizers the turn is encoded, and read token by token and at once.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tokenizers import Tokenizer

from runner.chat.families.probe import TOOLS, Turn, read_back, written_turns
from runner.chat.families.recognition import recognize
from runner.chat.template import ChatTemplate
from tests.runner.chat.families.answers import decoder, message_of, read, tokenizer_with

SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def family_of(source: str, tokenizer: Tokenizer) -> tuple[str | None, bool | None]:
    """Return the name, and whether the family reads the calls; None if the template writes none."""
    chat = ChatTemplate({"default": source}, SPECIAL_TOKENS)
    family = recognize(None, chat, tokenizer).family
    turns = list(written_turns(chat))
    is_read = family is not None and any(read_back(family, each, tokenizer) for each in turns)
    return None if family is None else family.name, is_read if turns else None


def is_read_from_tokens(source: str, tokenizer: Tokenizer) -> bool:
    chat = ChatTemplate({"default": source}, SPECIAL_TOKENS)
    family = recognize(None, chat, tokenizer).family
    assert family is not None
    turn: Turn = next(written_turns(chat))
    ids = tokenizer.encode(turn.text, add_special_tokens=False).ids
    starts = family.opens_reasoning(turn.prompt)
    for chunks in ([[each] for each in ids], [ids]):
        made = decoder(family, tokenizer, starts_in_reasoning=starts, tools=TOOLS)
        message = message_of(read(made, chunks))
        if [json.loads(each.arguments) for each in message.calls] != [*turn.calls] or message.content.strip():
            return False
    return True


if __name__ == "__main__":
    folder, *pairs = sys.argv[1:]
    if pairs:
        found: dict[str, object] = {}
        for file, _, name in (pair.rpartition(":") for pair in pairs):
            template = Path(folder, f"{name}.jinja").read_text(encoding="utf-8")
            found[name] = is_read_from_tokens(template, Tokenizer.from_file(file))
    else:
        files = sorted(Path(folder).glob("*.jinja"))
        found = {each.stem: family_of(each.read_text(encoding="utf-8"), tokenizer_with()) for each in files}
    print(json.dumps(found))
