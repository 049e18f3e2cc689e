"""Amount of reasoning before an answer, which variables of the chat template control.

An effort is a hint in all APIs, because coding agents send one with each request. It is ignored if the
template has no variable for it.
"""

import re
from typing import Any

from runner.api.openai.bodies import ChatBody
from runner.chat.template import ChatTemplate

_TAG_BEGIN, _TAG_END = re.compile(r"\{[{%]"), re.compile(r"[%}]\}")
EFFORT = "reasoning_effort"
_SWITCHES = ("enable_thinking", "thinking")
"""Variables of templates that turn reasoning on or off, each known to some models."""


def template_arguments(body: ChatBody, template: ChatTemplate) -> dict[str, Any] | None:
    """Return the body's variables, completed by those of ``reasoning_effort``."""
    effort, given = body.reasoning_effort, body.chat_template_kwargs
    if effort is None:
        return given
    values = {EFFORT: effort, **dict.fromkeys(_SWITCHES, effort != "none")}
    known = {name: value for name, value in values.items() if _has_variable(template, name)}
    return {**known, **(given or {})}


def _has_variable(template: ChatTemplate, name: str) -> bool:
    """Tell whether a tag of the template has the name, not as an attribute or a key."""
    tags = (_TAG_END.split(part, 1)[0] for part in _TAG_BEGIN.split(template.text)[1:])
    return any(re.search(rf"(?<![.'\"\w]){name}\b", tag) for tag in tags)
