"""Chats of every shape by every template of a folder: ``python -m tests.runner.chat.many_templates FOLDER``.

Prints JSON: by template, the chats that it refuses, and the texts that are not in a prompt.
"""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

from tests.runner.chat.chats import all_chats, program_of, rendered


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


if __name__ == "__main__":
    files = sorted(Path(sys.argv[1]).glob("*.jinja"))
    print(json.dumps({each.stem: failures(each.read_text(encoding="utf-8")) for each in files}))
