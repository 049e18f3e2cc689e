"""Turns of a chat, rearranged for templates that refuse or lose some; no text is lost, no order changed."""

import itertools
import json
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from runner.chat.messages import REASONING, Message

Step = Callable[[list[Message]], list[Message]]
Steps = tuple[Step, ...]

_WORD = re.compile(r"zq[0-9]+(?:text|call[0-9]+end)")
_BETWEEN = "\n\n"
_INSTRUCTIONS = ("system", "developer")
_JOINED = (*_INSTRUCTIONS, "user", "assistant")
_TEXTS = (*REASONING, "content")


def combined(messages: Iterable[Message]) -> list[Message]:
    """Join turns of the same role in a row, except results of tools."""
    made: list[Message] = []
    for message in messages:
        if made and made[-1]["role"] == message["role"] and message["role"] in _JOINED:
            made[-1] = _joined(made[-1], message)
        else:
            made.append(message)
    return made


def arrangements(messages: list[Message]) -> Iterator[tuple[Steps, list[Message]]]:
    """Yield ``messages`` as they are, then with as few changes as may be needed, then with more."""
    tried: list[list[Message]] = []
    for choice in itertools.product(*_STEPS):
        steps = tuple(itertools.chain.from_iterable(choice))
        made = arranged(messages, steps)
        if made not in tried:
            tried.append(made)
            yield steps, made


def arranged(messages: list[Message], steps: Steps) -> list[Message]:
    for step in steps:
        messages = step(messages)
    return messages


def shape_of(chat: list[Message]) -> tuple[object, ...]:
    """Return all that the arrangement of a chat depends on: nothing of its texts."""
    return tuple(
        (
            each["role"],
            None if (content := each.get("content")) is None else not content or content.isspace(),
            len(each.get("tool_calls", ())),
            bool(each.get(REASONING[0])),
        )
        for each in chat
    )


def with_words(chat: list[Message]) -> list[Message]:
    """Return a chat of the same shape, with a word of its own for each text and call."""
    ids: dict[str | None, str] = {}
    made = []
    for index, message in enumerate(chat):
        word: Message = {"role": message["role"]}
        if "content" in message:
            is_blank = not message["content"] or message["content"].isspace()
            word["content"] = "" if is_blank else f"zq{index}text"
        if "tool_calls" in message:
            word["tool_calls"] = [
                {
                    "id": ids.setdefault(_key(call.get("id")), f"zqid{len(ids):05}"),
                    "type": "function",
                    "function": {"name": "zqtool", "arguments": {"zqkey": f"zq{index}call{number}end"}},
                }
                for number, call in enumerate(message["tool_calls"])
            ]
        if message["role"] == "tool":
            word |= {
                "name": "zqtool",
                "tool_call_id": ids.get(_key(message.get("tool_call_id")), "zqid00000"),
            }
        made.append(word | {name: "zqthought" for name in REASONING if message.get(name)})
    return made


def _key(id_: object) -> str | None:
    return id_ if isinstance(id_, str) else None


def has_words(text: str, chat: list[Message]) -> bool:
    """Return True if all words of ``with_words``, arranged in whichever way, are in a prompt."""
    found = {*_WORD.findall(text)}
    return all(found.issuperset(_WORD.findall(repr(each))) for each in chat)


def _joined(first: Message, second: Message) -> Message:
    made = {**second, **first}
    for name in _TEXTS:
        if contents := [each[name] for each in (first, second) if each.get(name)]:
            made[name] = _joined_contents(contents)
    if calls := [*first.get("tool_calls", ()), *second.get("tool_calls", ())]:
        made["tool_calls"] = calls
    return made


def _joined_contents(contents: list[Any]) -> Any:
    """Join texts to a text. With a list of parts, as a client sends images, the result is a list of parts."""
    if all(isinstance(each, str) for each in contents):
        return _BETWEEN.join(contents)
    parts = [[{"type": "text", "text": each}] if isinstance(each, str) else each for each in contents]
    return [*itertools.chain.from_iterable(parts)]


def _with_system_in_front(messages: list[Message]) -> list[Message]:
    """Move late instructions to the first ones, whose rank they have. The last turn stays where it is."""
    *rest, last = messages
    front = [{**each, "role": "system"} for each in rest if each["role"] in _INSTRUCTIONS]
    others = [each for each in rest if each["role"] not in _INSTRUCTIONS]
    return combined([*front, *others, *(_without_system([last]) if others else [last])])


def _without_system(messages: list[Message]) -> list[Message]:
    return [{**each, "role": "user"} if each["role"] in _INSTRUCTIONS else each for each in messages]


def _with_text_in_results(messages: list[Message]) -> list[Message]:
    """Make what a user adds to results of tools a part of the last one."""
    made: list[Message] = []
    for message in messages:
        if made and made[-1]["role"] == "tool" and message["role"] == "user":
            made[-1] = {**made[-1], "content": made[-1]["content"] + _BETWEEN + message["content"]}
        else:
            made.append(message)
    return made


def _with_calls_apart(messages: list[Message]) -> list[Message]:
    """Make an assistant's text and calls two turns: some templates write only one of them."""
    made: list[Message] = []
    for message in messages:
        if message.get("tool_calls") and message.get("content"):
            made.append({key: value for key, value in message.items() if key != "tool_calls"})
            message = {"role": message["role"], "tool_calls": message["tool_calls"]}
        made.append(message)
    return made


def _with_single_calls(messages: list[Message]) -> list[Message]:
    """Make each call a turn, which its result follows: some templates write one call of a turn at most."""
    made: list[Message] = []
    for message in messages:
        first, *others = message.get("tool_calls", [None])
        if others:
            made.append({**message, "tool_calls": [first]})
            made += ({"role": message["role"], "tool_calls": [each]} for each in others)
        elif message["role"] == "tool":
            made.insert(_place_of_result(made, message.get("tool_call_id")), message)
        else:
            made.append(message)
    return made


def _place_of_result(messages: list[Message], id_: object) -> int:
    """Find the place after the call among the last messages, and after the results that it has already."""
    for at in range(len(messages), 0, -1):
        before = messages[at - 1]
        if before["role"] == "user":
            break
        if any(call.get("id") == id_ for call in before.get("tool_calls", ())):
            return at
        if before.get("tool_call_id") == id_:
            return at
    return len(messages)


def _with_calls_as_text(messages: list[Message]) -> list[Message]:
    """Write calls as JSON in the assistant's text: for models without tools."""
    made = []
    for message in messages:
        if "tool_calls" in message:
            functions = [each["function"] for each in message["tool_calls"]]
            calls = [{"name": each["name"], "arguments": each["arguments"]} for each in functions]
            texts = [message.get("content"), *(json.dumps(each, ensure_ascii=False) for each in calls)]
            message = {**message, "content": "\n".join(filter(None, texts))}
            del message["tool_calls"]
        made.append(message)
    return made


def _with_results_of_user(messages: list[Message]) -> list[Message]:
    return [
        {"role": "user", "content": each["content"]} if each["role"] == "tool" else each for each in messages
    ]


def _with_user_first(messages: list[Message]) -> list[Message]:
    """Put a user's turn before an answer that begins the chat: some clients shorten their history."""
    at = sum(1 for _ in itertools.takewhile(lambda each: each["role"] in _INSTRUCTIONS, messages))
    if at == len(messages) or messages[at]["role"] == "user":
        return messages
    return [*messages[:at], {"role": "user", "content": " "}, *messages[at:]]


def _with_blank_answers(messages: list[Message]) -> list[Message]:
    """Make an answer that is empty, or reasoning only, a space."""
    return [{**each, "content": " "} if each.get("content") == "" else each for each in messages]


def _without_reasoning(messages: list[Message]) -> list[Message]:
    return [{key: each[key] for key in each if key not in REASONING} for each in messages]


def _with_reasoning(messages: list[Message]) -> list[Message]:
    """Give answers without reasoning an empty one."""
    none = dict.fromkeys(REASONING, "")
    return [none | each if each["role"] == "assistant" else each for each in messages]


_STEPS: tuple[tuple[Steps, ...], ...] = (
    ((), (_with_reasoning,), (_without_reasoning,)),
    ((), (_with_user_first,)),
    ((), (_with_calls_as_text,), (_with_calls_as_text, _with_results_of_user)),
    ((), (_with_system_in_front,), (_without_system,)),
    ((), (combined,), (combined, _with_text_in_results)),
    ((), (_with_single_calls,)),
    ((), (_with_calls_apart,)),
    ((), (_with_blank_answers,)),
)
"""Steps by row; one of each row is taken. Those of the last row are tried first."""
