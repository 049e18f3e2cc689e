"""Prompt templates: Python format strings with the fields ``{prompt}`` and ``{system_prompt}``."""

import string
from collections import Counter

from errors.requests import BadPromptTemplate, PromptRequired, PromptTemplateError, PromptTooLong

_FIELDS = ("prompt", "system_prompt")
_PART = 1 << 16


def format_prompt(template: str, *, prompt: str, system_prompt: str, max_bytes: int = 1 << 24) -> str:
    """Fill ``{prompt}`` and ``{system_prompt}`` of a Python format string.

    Raises E1002 if the result has more than ``max_bytes``, E1003 for a template without ``{prompt}`` where
    there is a prompt, E1004 for one that is not a valid format string or names anything else, E1001 if the
    result is blank.
    """
    values = {"prompt": prompt, "system_prompt": system_prompt}
    sizes = {name: byte_length(text) for name, text in values.items()}
    # NOTE: check the size first, as reading a template takes many times its size.
    _check_size(max(byte_length(template), *sizes.values()), max_bytes)
    counts = _count_fields(template)
    if prompt and not counts["prompt"]:
        raise BadPromptTemplate
    _check_size(sum(counts[name] * size for name, size in sizes.items()), max_bytes)
    text = template.format(prompt=prompt, system_prompt=system_prompt)
    if not text.strip():
        raise PromptRequired
    return text


def begins_turn_after(template: str) -> bool:
    """Return True if the template ends the prompt's turn, so that the text after it begins another.

    Without text after ``{prompt}`` the model continues the prompt.
    """
    return not template.endswith("{prompt}")


def byte_length(text: str) -> int:
    """Return the length in UTF-8."""
    if text.isascii():
        return len(text)
    # NOTE: encode in parts, so that a large text is not copied.
    parts = (text[start : start + _PART] for start in range(0, len(text), _PART))
    return sum(len(part.encode(errors="surrogatepass")) for part in parts)


def _check_size(size_bytes: int, max_bytes: int) -> None:
    if size_bytes > max_bytes:
        raise PromptTooLong.in_bytes(prompt_bytes=size_bytes, max_bytes=max_bytes)


def _count_fields(template: str) -> Counter[str]:
    """Count how often a template names each field. Only plain names are taken.

    NOTE: ``{prompt.__class__}``, ``{prompt[0]}`` and the like would let a template read our objects.
    """
    counts: Counter[str] = Counter()
    try:
        for _, field, spec, conversion in string.Formatter().parse(template):
            if field is None:
                continue
            if field not in _FIELDS:
                reason = f"it names the field {{{field}}}, and only {{prompt}} and {{system_prompt}} exist"
                raise PromptTemplateError(reason=reason)
            if spec or conversion:
                raise PromptTemplateError(reason=f"the field {{{field}}} has a format or conversion")
            counts[field] += 1
    except ValueError as exc:
        raise PromptTemplateError(reason=str(exc).lower()) from exc
    return counts
