"""Recognition of a model's family: the one that reads the calls that its chat template writes (``probe``).

A template that writes none is recognized by signs: texts in it, or tokens of the tokenizer. If the calls have
no markers of a family, the model's own description of its answers makes one (``response_template``).
"""

import re
from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec
from tokenizers import Tokenizer

from errors.settings import InvalidSetting
from runner.chat.families import (
    bare_json,
    deepseek,
    glm,
    harmony,
    json_families,
    kimi,
    llama4,
    mistral,
    qwen3_coder,
    tag_families,
)
from runner.chat.families.bare_json import THINKING
from runner.chat.families.family import Family, Span
from runner.chat.families.glm import hunyuan_3
from runner.chat.families.probe import ReadBack, Turn, is_form_of, read_back, written_turns
from runner.chat.families.response_template import read_response_template
from runner.chat.template import ChatTemplate

NO_FAMILY = "none"

_SIGNS: Sequence[tuple[str, tuple[str, ...]]] = (
    ("gpt-oss", ("<|channel|>", "<|message|>")),
    ("kimi-k2", ("<|tool_calls_section_begin|>",)),
    ("kimi-k3", ("<|open|>", "<|close|>", "<|sep|>")),
    ("k2-horizon", ("<ifm|tool_call>",)),
    ("minimax-m2", ("<minimax:tool_call>",)),
    ("minimax-m3", ("]<]minimax[>[",)),
    ("gemma-4", ("<|tool_call>", "<tool_call|>")),
    ("functiongemma", ("<start_function_call>",)),
    ("lfm2", ("<|tool_call_start|>",)),
    ("lfm2", ("<|tool_list_start|>",)),
    ("lfm2", ("List of tools: [", "<|im_start|>")),
    ("olmo3", ("<function_calls>", "<functions>")),
    ("seed-oss", ("<seed:tool_call>",)),
    ("hunyuan-3", ("<tool_calls:opensource>",)),
    ("apertus", ("<|tools_prefix|>",)),
    ("solar", ("<|tool_call:begin|>",)),
    ("minicpm-5", ('<function name="', '<param name="')),
    ("longcat-lite", ("<longcat_arg_key>",)),
    ("longcat", ("<longcat_tool_call>",)),
    ("dots", ("<dots_function_call>",)),
    ("nemotron-2", ("<TOOLCALL>",)),
    ("intern", ("<|action_start|>", "<|plugin|>")),
    ("gigachat", ("<|role_sep|>", "<|message_sep|>")),
    ("apriel", ("[BEGIN FINAL RESPONSE]",)),
    ("hunyuan-a13b", ("<tool_calls>",)),
    ("ernie", ("<tool_call>", "<response>", "</response>", "<|im_start|>")),
    ("deepseek-v4.1", ("<｜DSML｜ calls>",)),
    ("deepseek-v3.2", ("｜DSML｜", "function_calls")),
    ("deepseek-v4", ("｜DSML｜",)),
    ("deepseek-v3", ("<｜tool▁calls▁begin｜>", "```json")),
    ("deepseek-v3.1", ("<｜tool▁calls▁begin｜>", "<｜Assistant｜>")),
    ("mistral", ("[TOOL_CALLS]", "[ARGS]")),
    ("mistral-list", ("[TOOL_CALLS]",)),
    ("command-r", ("<|START_ACTION|>",)),
    ("command-r-2024", ("<|START_OF_TURN_TOKEN|>", "directly-answer")),
    ("glm", ("<arg_key>",)),
    ("qwen3-coder", ("<function=", "<parameter=")),
    ("llama4", ("<|header_start|>", "<|python_start|>")),
    ("phi4", ("<|/tool_call|>",)),
    ("phi4", ("functools[",)),
    ("phi4", ("<|im_sep|>",)),
    ("granite-3.2", ("<|start_of_role|>", "Here is my thought process:")),
    ("hermes", ("<|start_of_role|>", "</tool_call>")),
    ("granite", ("<|start_of_role|>", "<|tool_call|>")),
    ("hermes", ("<tool_call>",)),
    ("functionary-3.1", ("<function=", "</function>", "<|start_header_id|>")),
    ("granite-20b", ("<function_call>",)),
    ("xlam", ("xLAM",)),
    ("xlam", ("make calls in a single JSON array",)),
    ("llama3", ("<|python_tag|>", "tools")),
    ("thinking", ("<think>",)),
)
"""Signs in the order of checks. All signs of a row have to be in the template, or be tokens."""

_MODULES = (
    *(bare_json, deepseek, glm, harmony, json_families, kimi, llama4, mistral, qwen3_coder, tag_families),
)
_DEFINED = {
    each.name: each for module in _MODULES for each in vars(module).values() if isinstance(each, Family)
}
FAMILIES = {
    name: _DEFINED[name] for name in (*(name for name, _ in _SIGNS), "functionary", "pythonic", "generic")
}
"""Families by name, those without signs last."""
_HUNYUAN_3 = re.compile(r"<tool_sep((?::\w+)?)>")
_SPANS = tuple(
    dict.fromkeys(each.reasoning for each in FAMILIES.values() if each.reasoning and not each.has_channels)
)
_UNREAD = (
    "no model family reads the calls that the chat template writes ({written}): calls of tools stay text, "
    "unless CHAT_FAMILY names a family"
)
_MAX_SHOWN = 80


class Recognized(msgspec.Struct, frozen=True):
    family: Family | None = None
    warning: str = ""
    """Sentence for the log, if calls are not read though the model's files tell of them."""


def check_family(name: str | None) -> None:
    """Raise E1006 for an unknown name."""
    if name not in (None, NO_FAMILY, *FAMILIES):
        expected = f"{', '.join(FAMILIES)} or {NO_FAMILY}"
        raise InvalidSetting(name="CHAT_FAMILY", expected=expected, value=name)


def recognize(name: str | None, chat: ChatTemplate, tokenizer: Tokenizer) -> Recognized:
    """Return the family ``name``, or else the one that is recognized. Raises E1006 for an unknown name."""
    check_family(name)
    if name is not None:
        return Recognized(FAMILIES.get(name))
    if not chat.exists:
        return Recognized()
    added = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    by_signs = [FAMILIES[name] for name, signs in _SIGNS if all(_has(sign, chat, added) for sign in signs)]
    unread = ""
    others = [hunyuan_3(found[1]) for found in map(_HUNYUAN_3.search, (chat.text, *added)) if found]
    described, refusal = read_response_template(chat.response_template, tokenizer)
    for turn in written_turns(chat):
        family = _reader_of(turn, by_signs, others, tokenizer)
        if described is not None and not _is_marked(family, turn) and read_back(described, turn, tokenizer):
            family = described
        if family is not None:
            return Recognized(_with_reasoning(family, turn, chat, added, tokenizer))
        unread = unread or turn.text
    known = next(iter(by_signs), None)
    reasoning = None if described is None else described.reasoning
    if unread:
        span = reasoning or next(_spans_in(chat, added), None)
        family = None if span is None else msgspec.structs.replace(THINKING, reasoning=span)
        warning = _UNREAD.format(written=repr(unread.strip()[:_MAX_SHOWN]))
        return Recognized(family, f"{warning}; {refusal}" if refusal else warning)
    if known not in (None, THINKING):
        return Recognized(known)
    if described is not None and reasoning is None and known is not None:
        described = msgspec.structs.replace(described, reasoning=known.reasoning)
    return Recognized(described or known, refusal)


def _has(sign: str, chat: ChatTemplate, added: Collection[str]) -> bool:
    return sign in chat.text or sign in added


def _is_marked(family: Family | None, turn: Turn) -> bool:
    """Return True if a marker of the family begins calls in the turn."""
    calls = None if family is None else family.calls
    return calls is not None and any(each in turn.text for each in calls.begins)


def _reader_of(
    turn: Turn, by_signs: Sequence[Family], others: Iterable[Family], tokenizer: Tokenizer
) -> Family | None:
    """Return the family that reads the calls of a turn and leaves least of it as content."""

    def rank(family: Family, read: ReadBack) -> tuple[int | bool, ...]:
        by_sign = by_signs.index(family) if family in by_signs else len(by_signs)
        calls = family.calls
        is_form = calls is not None and is_form_of(calls, turn.text)
        has_marker = calls is not None and bool(calls.begins)
        form = (not _is_marked(family, turn), not is_form, by_sign, has_marker, family.reasoning is not None)
        return not read.is_thought_read, len(read.content), *form

    families = (*FAMILIES.values(), *others)
    found = [(rank(each, read), each) for each in families if (read := read_back(each, turn, tokenizer))]
    return min(found, key=lambda each: each[0])[1] if found else None


def _with_reasoning(
    family: Family, turn: Turn, chat: ChatTemplate, added: Collection[str], tokenizer: Tokenizer
) -> Family:
    """Give ``family`` the markers of reasoning that the template has, if they are others than its own."""
    if family.has_channels:
        return family
    own = family.reasoning
    if turn.has_thought:
        others = [msgspec.structs.replace(family, reasoning=span) for span in (own, *_SPANS)]
        read = ((each, read_back(each, turn, tokenizer)) for each in others)
        return next((each for each, back in read if back is not None and back.is_thought_read), family)
    if own is not None and (_has(own.begin, chat, added) or _has(own.end, chat, added)):
        return family
    return msgspec.structs.replace(family, reasoning=next(_spans_in(chat, added), own))


def _spans_in(chat: ChatTemplate, added: Collection[str]) -> Iterator[Span]:
    return (each for each in _SPANS if _has(each.begin, chat, added) and _has(each.end, chat, added))
