"""Prompt templates: Python format strings with the fields ``{prompt}`` and ``{system_prompt}``."""

from __future__ import annotations

import string

from errors.requests import BadPromptTemplate, PromptRequired, PromptTemplateError

_FIELDS = ("prompt", "system_prompt")


def format_prompt(template: str, *, prompt: str, system_prompt: str) -> str:
    """Fill ``{prompt}`` and ``{system_prompt}`` of a Python format string.

    Raises E1003 for a template without ``{prompt}`` where there is a prompt, E1004 for one that is
    not a valid format string or names anything else, E1001 if the result is blank.
    """
    fields = _fields(template)
    if prompt and "prompt" not in fields:
        raise BadPromptTemplate
    text = template.format(prompt=prompt, system_prompt=system_prompt)
    if not text.strip():
        raise PromptRequired
    return text


def _fields(template: str) -> set[str]:
    """The fields a template names. Only plain names are taken.

    NOTE: ``{prompt.__class__}``, ``{prompt[0]}`` and the like would let a template read our objects.
    """
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError as exc:
        raise PromptTemplateError(reason=str(exc).lower()) from exc
    fields = set()
    for _, field, spec, conversion in parsed:
        if field is None:
            continue
        if field not in _FIELDS:
            raise PromptTemplateError(
                reason=f"it names the field {{{field}}}, and only {{prompt}} and {{system_prompt}} exist"
            )
        if spec or conversion:
            raise PromptTemplateError(reason=f"the field {{{field}}} has a format or conversion")
        fields.add(field)
    return fields
