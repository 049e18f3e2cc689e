"""Real templates: ``python -m tests.runner.chat.many_templates FOLDER [TOKENIZER_FILE:NAME..]``.

Prints JSON by template: the chats of every shape that it refuses, and the texts that are not in a prompt; the
family; and whether the family reads the calls that the template writes. With the files of tokenizers only
whether it reads them from tokens, one by one and at once.
"""

import itertools
import json
import sys
from pathlib import Path

from tokenizers import Tokenizer

from runner.chat.families.probe import TOOLS, read_back, written_turns
from runner.chat.families.recognition import recognize
from runner.chat.template import ChatTemplate
from tests.runner.chat.chats import SPECIAL_TOKENS, all_chats, program_of, rendered
from tests.runner.chat.families.answers import decoder, message_of, read, tokenizer_with


def failures(source: str) -> list[str]:
    program = program_of(source)
    found = []
    for (name, chat, texts), has_tools in itertools.product(all_chats(), (False, True)):
        place = f"{name}{' with tools' if has_tools else ''}"
        try:
            prompt = rendered(program, chat, has_tools=has_tools)
        except Exception as exc:  # noqa: BLE001 - a template fails with anything
            found.append(f"{place} is refused: {exc}")
            continue
        found += [f"{place} lacks {text!r}" for text in texts if text not in prompt]
    return found


def family_of(source: str) -> tuple[str | None, bool | None]:
    """Return the name, and whether the family reads the calls; None if the template writes none."""
    chat, tokenizer = ChatTemplate({"default": source}, SPECIAL_TOKENS), tokenizer_with()
    family = recognize(None, chat, tokenizer).family
    turns = list(written_turns(chat))
    is_read = family is not None and any(read_back(family, each, tokenizer) for each in turns)
    return None if family is None else family.name, is_read if turns else None


def is_read_from_tokens(source: str, tokenizer: Tokenizer) -> bool:
    chat = ChatTemplate({"default": source}, SPECIAL_TOKENS)
    family = recognize(None, chat, tokenizer).family
    assert family is not None
    turn = next(written_turns(chat))
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
    sources = {each.stem: each.read_text(encoding="utf-8") for each in sorted(Path(folder).glob("*.jinja"))}
    if pairs:
        files = (pair.rpartition(":") for pair in pairs)
        found = {
            name: is_read_from_tokens(sources[name], Tokenizer.from_file(file)) for file, _, name in files
        }
        print(json.dumps(found))
    else:
        print(json.dumps({name: (failures(each), *family_of(each)) for name, each in sources.items()}))
