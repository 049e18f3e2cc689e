"""Probe of a chat template: a turn with calls and reasoning as it writes them, and as a family reads them."""

import itertools
import json
import os.path
import re
import time
from collections.abc import Iterator
from typing import Any

import msgspec
from tokenizers import Tokenizer

from errors.coded_error import CodedError
from runner.chat.families.family import AnswerForm, CallSyntax, Family
from runner.chat.families.llama4 import PythonCalls
from runner.chat.families.marked_answer import answer_reader
from runner.chat.families.parts import CallArguments, CallStart, Content, Part, Reasoning
from runner.chat.families.syntax.json_calls import JsonCalls
from runner.chat.families.syntax.named_calls import NamedCalls
from runner.chat.families.tools import Tool, ToolUse
from runner.chat.messages import Message
from runner.chat.template import ChatTemplate

_STRING = {"type": "string", "description": "A name."}
_TOOL = Tool(
    "probe_tool",
    "Probes.",
    {"type": "object", "properties": {"place": _STRING, "day": _STRING}, "required": ["place"]},
)
_DEFINITION = {"name": _TOOL.name, "description": _TOOL.description, "parameters": _TOOL.parameters}
TOOLS = ToolUse((_TOOL,))
_ROME = {"place": "Rome"}
_SEVERAL = ({"place": "New York", "day": "Monday"}, {**_ROME, "day": "Friday"})
_IDS = ("aBcDeFgH{}", f"functions.{_TOOL.name}:{{}}")
"""Ids of calls: as Mistral's templates need them, and as those of Kimi do, which write no other name."""
_THOUGHT = "Two places are to be probed"
_CALLS = "tool_calls"
"""Variable that a template with calls names."""
_MAX_S = 10.0
"""Limit for all turns of a template that is slow."""
_OPEN_MARKER = re.compile(r"[<\[][^\s<>\[\]]*\Z")


class Turn(msgspec.Struct, frozen=True):
    """Turn of the assistant in a chat that was rendered."""

    prompt: str
    """Text before the turn, with the generation prompt."""
    text: str
    calls: tuple[dict[str, str], ...]
    """Arguments of each call of the tool."""

    @property
    def has_thought(self) -> bool:
        """True if the template wrote the reasoning: many leave it out of the history."""
        return _THOUGHT in self.text


class ReadBack(msgspec.Struct, frozen=True):
    """Result of a family that read all calls of a turn."""

    is_thought_read: bool
    """True if the reasoning is read as it was, also if it is none."""
    content: str
    """Text that is neither: markers that the family does not know."""


def written_turns(chat: ChatTemplate) -> Iterator[Turn]:
    """Yield the turns in which the template writes calls: templates differ in what they take and refuse."""
    if _CALLS not in chat.text:
        return
    tools = [{"type": "function", "function": _DEFINITION}]
    user = {"role": "user", "content": "Please probe."}
    deadline_s = time.monotonic() + _MAX_S
    try:
        prompt = chat.probe([user], tools, add_generation_prompt=True)
    except (CodedError, OSError):
        return
    forms = itertools.product(_IDS, (_SEVERAL, _SEVERAL[:1], (_ROME,)), (_THOUGHT, ""))
    for id_, calls, thought in forms:
        if time.monotonic() > deadline_s:
            return
        try:
            text = chat.probe([user, _turn(calls, thought, id_)], tools, add_generation_prompt=False)
        except (CodedError, OSError):
            continue
        same = _OPEN_MARKER.sub("", os.path.commonprefix([prompt, text]))
        text = text[len(same) :]
        if all(each["place"] in text for each in calls):
            yield Turn(same, text, calls)


def _turn(calls: tuple[dict[str, str], ...], thought: str, id_: str) -> Message:
    made: list[dict[str, Any]] = []
    for number, arguments in enumerate(calls):
        function = {"name": _TOOL.name, "arguments": arguments}
        made.append({"id": id_.format(number), "type": "function", "function": function})
    return {"role": "assistant", _CALLS: made} | ({"reasoning_content": thought} if thought else {})


def read_back(family: Family, turn: Turn, tokenizer: Tokenizer) -> ReadBack | None:
    """Read ``turn``; return None if the family does not read exactly its calls."""
    form = AnswerForm(family, TOOLS, family.opens_reasoning(turn.prompt))
    reader = answer_reader(form, tokenizer)
    read: dict[type[Part], str] = {Content: "", Reasoning: ""}
    calls: list[str] = []
    for part in (*reader.push(reader.markers.encoded(turn.text)), *reader.finish()):
        if isinstance(part, CallStart):
            calls.append("")
            if part.name != _TOOL.name:
                return None
        elif isinstance(part, CallArguments):
            calls[-1] += part.text
        else:
            read[type(part)] += part.text
    try:
        is_same = [json.loads(each) for each in calls] == [*turn.calls]
    except ValueError:
        is_same = False
    is_thought_read = read[Reasoning] == (_THOUGHT if turn.has_thought else "")
    return ReadBack(is_thought_read, read[Content].strip()) if is_same else None


def is_form_of(calls: CallSyntax, text: str) -> bool:
    """Return True if ``text`` has the form that a syntax writes. It may read others, too."""
    match calls:
        case JsonCalls():
            is_list = re.search(r"\[\s*\{", text) is not None
            return f'"{calls.arguments_key}"' in text and calls.is_list == is_list
        case NamedCalls():
            return calls.before_name in text and (calls.before_arguments or calls.separator) in text
        case PythonCalls():
            return calls.is_list == (re.search(r"\[\s*\w+\(", text) is not None)
    return True
