"""Form of the messages that a chat template gets: some templates refuse the form that others need.

``learned_form`` finds it out by rendering probes: short chats of made-up words that have to appear in the
prompt.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterator
from hashlib import sha256
from typing import Any

import msgspec

from runner.chat.messages import Message

Rendered = Callable[[list[Message]], str | None]
"""Function that renders a chat with a tool; None if the template refuses it."""

_SHORT_ID = re.compile(r"[a-zA-Z0-9]{9}")
_USER, _KEY, _VALUE, _OTHER_ROLE = "zquser", "zqkey", "zqvalue", "zqrole"
_LONG_ID = "call_0123456789abcdef"
_TYPE = re.compile("[\"']type[\"']")
_NOTHING = re.compile(r"None|null|undefined")
_BEST = 8
_MISSING: tuple[str | msgspec.UnsetType | None, ...] = (msgspec.UNSET, None, "")


class Form(msgspec.Struct, frozen=True, kw_only=True):
    """Form in which messages are given to one template."""

    missing_content: str | msgspec.UnsetType | None = msgspec.UNSET
    """Content of an assistant's message that has calls only. Unset: the field is left out."""
    has_text_arguments: bool = False
    """True if arguments of calls are JSON in a text, not an object."""
    takes_any_arguments: bool = False
    """True if arguments that are no object may be given as the text that the model wrote."""
    has_short_ids: bool = False
    """True if ids of calls have 9 letters and digits, as some of Mistral's templates require."""
    has_parts: bool = False
    """True if content is a list of parts, not a text."""

    def given(self, messages: list[Message], image_mark: str = "") -> list[Message]:
        """Return the messages in this form. ``image_mark`` in a text stands for an image."""
        return [self._message(each, image_mark) for each in messages]

    def _message(self, message: Message, image_mark: str) -> Message:
        made = dict(message)
        content = made.pop("content", self.missing_content)
        if image_mark and isinstance(content, str) and image_mark in content:
            made["content"] = _with_images(content, image_mark)
        elif content is not msgspec.UNSET:
            made["content"] = [{"type": "text", "text": content}] if self.has_parts and content else content
        if "tool_calls" in made:
            made["tool_calls"] = [self._call(each) for each in made["tool_calls"]]
        if "tool_call_id" in made:
            made["tool_call_id"] = self._id(made["tool_call_id"])
        return made

    def _call(self, call: Message) -> Message:
        function = call["function"]
        arguments = function["arguments"]
        if isinstance(arguments, dict):
            if self.has_text_arguments:
                arguments = json.dumps(arguments, ensure_ascii=False)
        elif not (self.has_text_arguments or self.takes_any_arguments):
            arguments = {"arguments": arguments}
        made = {**call, "function": {**function, "arguments": arguments}}
        return {**made, "id": self._id(call["id"])} if "id" in call else made

    def _id(self, given: Any) -> Any:
        if not self.has_short_ids or not isinstance(given, str) or _SHORT_ID.fullmatch(given):
            return given
        return sha256(given.encode(errors="surrogatepass")).hexdigest()[:9]


def learned_form(render: Rendered) -> Form:
    """Return the first form in which the template writes a call and its result, and writes them well."""
    user = {"role": "user", "content": _USER}
    plain, parts = (render(Form(has_parts=each).given([user])) or "" for each in (False, True))
    form = Form(has_parts=_USER not in plain and _USER in parts)
    num_nothing = len(_NOTHING.findall(parts if form.has_parts else plain))
    chat = _chat_with({_KEY: _VALUE})
    for probe in (chat, chat[:-1]):  # Some know no results.
        best = 0
        for tried in _forms(has_parts=form.has_parts):
            text = render(tried.given(probe))
            if text is not None and (score := _score(text, num_nothing)) > best:
                best, form = score, tried
            if best == _BEST:
                break
        if best:
            break
    any_text = msgspec.structs.replace(form, takes_any_arguments=True)
    text = render(any_text.given(_chat_with(f'{{"{_KEY}": "{_VALUE}')))
    return any_text if text is not None and _VALUE in text else form


def _forms(*, has_parts: bool) -> Iterator[Form]:
    for is_short, is_text, missing in itertools.product((False, True), (False, True), _MISSING):
        yield Form(
            missing_content=missing, has_text_arguments=is_text, has_short_ids=is_short, has_parts=has_parts
        )


def _score(text: str, num_nothing: int) -> int:
    """Score how well a call is written: with arguments as JSON, and missing content as nothing."""
    is_python_or_twice_json = f"'{_KEY}'" in text or f'\\"{_KEY}' in text
    has_nothing = len(_NOTHING.findall(text)) > num_nothing
    return 1 + 4 * (_VALUE in text) + 2 * (not is_python_or_twice_json) + (not has_nothing)


def _with_images(content: str, mark: str) -> list[Message]:
    """Return the parts of a text in which each mark, on a line of its own, is an image."""
    parts: list[Message] = []
    for number, text in enumerate(re.split(f"\n?{mark}\n?", content)):
        parts += [{"type": "image"}] * bool(number)
        parts += [{"type": "text", "text": text}] * bool(text)
    return parts


def takes_images(render: Rendered) -> bool:
    """Return True if the template writes an image at its place in a message, and not the list of parts."""
    mark = str(10**24)
    with_image = render(Form().given([{"role": "user", "content": f"{_USER}\n{mark}\n{_VALUE}"}], mark))
    found = re.search(f"{_USER}(.+){_VALUE}", with_image or "", re.DOTALL)
    return found is not None and bool(found[1].strip()) and not _TYPE.search(found[1])


def knows_role(render: Rendered, role: str) -> bool:
    """Return True if the template writes messages of the role, and not like those of any role whatsoever."""
    user = {"role": "user", "content": _USER}
    for before, after in (([], [user]), ([user, {"role": "assistant", "content": "zqanswer"}], [])):
        text, other = (
            render([*before, {"role": each, "content": _VALUE}, *after]) for each in (role, _OTHER_ROLE)
        )
        if text is None or _VALUE not in text:
            continue
        if other is None or text.lower() != other.lower().replace(_OTHER_ROLE, role.lower()):
            return True
    return False


def _chat_with(arguments: Any) -> list[Message]:
    call = {"id": _LONG_ID, "type": "function", "function": {"name": "zqtool", "arguments": arguments}}
    return [
        {"role": "user", "content": _USER},
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": _LONG_ID, "name": "zqtool", "content": "zqresult"},
    ]
