"""Chats of every shape that clients send, for tests over many templates. No two texts are the same."""

import json
from collections.abc import Iterator
from typing import Any

from runner.chat.jinja import compile_template
from runner.chat.rendering import ChatProgram, Compile, Render

Chat = list[dict[str, Any]]

_LETTERS = {"s": "system", "d": "developer", "u": "user", "a": "assistant", "t": "tool"}
_SHAPES = (
    *("u", "s", "d", "su", "du", "sdu", "ssu", "uu", "uau", "uaau", "suau", "uauu", "uptt", "sPttu"),
    *("uasu", "uadu", "suasu", "suadu", "uaus", "uas", "uad", "duau", "suaus", "au", "sctu"),
    *("uct", "succtt", "uptt", "sPttu", "uctau", "uctu", "uctctu", "uCt", "sdCtsu", "suCtCtdu", "uc"),
    *("ucau", "uctauctu"),
    *("ueu", "uru", "uRt", "ueua", "suru"),
)
"""Letters: c: a call, C: and a text, p: two calls, e: an empty answer, r: reasoning, R: and a call."""
_CALLING = {**dict.fromkeys("cCR", ("called",)), **dict.fromkeys("pP", ("called", "asked"))}
"""What the calls of a message have as arguments."""
_ARGUMENTS = ("", "null", "[]", "{}", '{"city": "Par', '["Paris"]', '"Paris"', '{"city": "Paris"}', None)
_TOOL = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {}}}
TOOLS = [{"type": "function", "function": _TOOL}]
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}


def shaped(shape: str) -> Chat:
    """Return a chat of the shape, as the server's own answers and OpenAI's clients write it."""
    chat: Chat = []
    waiting: list[str] = []
    for number, letter in enumerate(shape):
        message: dict[str, Any] = {"role": _LETTERS.get(letter, "assistant"), "content": _text(number)}
        if letter in "cper":
            message["content"] = None
        if letter in "rR":
            message |= dict.fromkeys(("reasoning", "reasoning_content"), "I think.")
        if letter in _CALLING:
            called = _CALLING[letter]
            ids = [f"call_{number:023}{at}" for at in range(len(called))]
            arguments = (json.dumps({"city": _text(number, each)}) for each in called)
            message["tool_calls"] = [call_with(each, id_) for each, id_ in zip(arguments, ids, strict=True)]
            waiting += ids
        if letter == "t":
            message["tool_call_id"] = waiting.pop(0)
        chat.append(message)
    return chat


def _text(number: int, what: str = "said") -> str:
    return f"This was {what} as number {number:02}."


def call_with(arguments: Any, id_: str = "call_1") -> dict[str, Any]:
    return {"id": id_, "type": "function", "function": {"name": "look", "arguments": arguments}}


def all_chats() -> Iterator[tuple[str, Chat, list[str]]]:
    """Yield a name, the chat, and the texts that have to be in the prompt."""
    for shape in _SHAPES:
        chat = shaped(shape)
        texts = [each["content"] for each in chat if each["content"]]
        texts += [_text(at, each) for at, letter in enumerate(shape) for each in _CALLING.get(letter, ())]
        yield shape, chat, texts
    for arguments in _ARGUMENTS:
        answer = {"role": "assistant", "content": None, "tool_calls": [call_with(arguments)]}
        result = {"role": "tool", "tool_call_id": "call_1", "content": "Not found."}
        chat = [{"role": "user", "content": "Where?"}, answer, result]
        written = ["Par"] if "Par" in str(arguments) else []
        yield f"arguments {arguments}", chat, ["Where?", "Not found.", *written]


def program_of(source: str) -> ChatProgram:
    return ChatProgram(compile_template(source), Compile({}, "", SPECIAL_TOKENS))


def rendered(
    program: ChatProgram, chat: Chat, *, has_tools: bool = False, system_prompt: str = "", **variables: Any
) -> str:
    given = {"tools": TOOLS if has_tools else None, "documents": None, **variables}
    own = {"add_generation_prompt": True}
    # NOTE: a copy, as messages come from a client each time.
    message = Render("default", json.dumps(chat), system_prompt, continues=False, given=given, own=own)
    return program.render(message).text
