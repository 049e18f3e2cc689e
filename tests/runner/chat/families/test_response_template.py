"""Where no family fits, the model's own description of its answers (``response_template``) makes one."""

import copy
import json
import random
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from llguidance import LLTokenizer
from tokenizers import Tokenizer

from runner.chat.families.family import AnswerForm, Family, Span
from runner.chat.families.recognition import FAMILIES, Recognized, recognize
from runner.chat.families.response_template import read_response_template
from runner.chat.families.tools import ToolUse
from runner.chat.guides.answer_guide import answer_guide
from runner.chat.template import ChatTemplate, load_chat_template
from runner.engines.guides.grammar import grammar_of, matcher
from tests import fast
from tests.runner.chat.families.answers import (
    Call,
    Message,
    decoder,
    read_in_all_ways,
    tokenizer_with,
    tool_use,
)
from tests.runner.chat.families.test_recognition import template

TOOLS = tool_use(f={"n": {"type": "integer"}})
THOUGHT = {"open": "<mull>", "close_pattern": r"</mull>\s*", "content": "text"}
MULL = Span("<mull>", "</mull>")
JSON = {"open_pattern": r"\s*<\|act\|>", "close": "<|done|>", "repeats": True, "content": "json"}
WHOLE = {"type": "function", "function": "{content}"}
NAMED = {"type": "function", "function": {"name": "{name}", "arguments": "{content}"}}
LIST = {"type": "function", "function": {"name": "{tool}", "arguments": "{inputs}"}}
KEYS = {"type": "function", "function": {"name": "{content.tool}", "arguments": "{content.inputs}"}}
HEADER = {**JSON, "open_pattern": r"<\|act\|>to=(?P<name>[^\s<|]+)<\|with\|>\s*", "transform": NAMED}
FORMS: dict[str, tuple[dict[str, Any], str]] = {
    "an object": ({**JSON, "transform": WHOLE}, '<|act|>\n{"name": "f", "arguments": {"n": 1}}\n<|done|>'),
    "an object up to the end": (
        {"open": "<|act|>", "close_pattern": r"<\|done\|>\s*|$", "repeats": True, "content": "json"},
        '<|act|>{"name": "f", "arguments": {"n": 1}}<|done|>',
    ),
    "other keys": (
        {**JSON, "transform": KEYS},
        '<|act|>{"why": [1], "tool": "f", "inputs": {"n": 1}, "more": {}}<|done|>',
    ),
    "a list": (
        {**JSON, "repeats": False, "transform_each": True, "transform": LIST},
        '<|act|>[{"tool_id": "0", "tool": "f", "inputs": {"n": 1}}]<|done|>',
    ),
    "several marks": (
        {**JSON, "open_pattern": "", "open": ["<|act|>", "<|now|>\n"], "close": ["<|done|>", "<|end|>"]},
        '<|now|>{"name": "f", "arguments": {"n": 1}}<|done|>',
    ),
    "the name in a header": (HEADER, '<|act|>to=f<|with|>{"n": 1}<|done|>'),
    "no mark after a call": (
        {"open": "[ACT]", "content": "json"},
        '[ACT][{"name": "f", "arguments": {"n": 1}}]',
    ),
}
"""Descriptions of calls, and a call in each form."""
REQUIRED = {
    "an object": '<|act|>{"name": "f", "arguments": {"n": 1}}<|done|>',
    "a list": '<|act|>[{"tool": "f", "inputs": {"n": 1}}]<|done|>',
    "the name in a header": '<|act|>to=f<|with|>{"n": 1}<|done|>',
}
WRITTEN = {
    "an object": '<|act|>{"name": "{{ tool.name }}", "arguments": {{ tool.arguments | tojson }}}<|done|>',
    "other keys": '<|act|>{"tool": "{{ tool.name }}", "inputs": {{ tool.arguments | tojson }}}<|done|>',
    "the name in a header": "<|act|>to={{ tool.name }}<|with|>{{ tool.arguments | tojson }}<|done|>",
}
"""Calls in templates."""
TOKENS = ("<|act|>", "<|with|>", "<|done|>", "[assistant]", "[user]", "[end]")


def described(calls: object = None, **fields: object) -> dict[str, Any]:
    made = {"reasoning_content": THOUGHT, "content": {"close_pattern": r"\s*<\|end\|>|$"}, **fields}
    return {
        "defaults": {"role": "assistant"},
        "start_anchor": "<|im_start|>assistant\n",
        "fields": made if calls is None else {**made, "tool_calls": calls},
    }


def recognized(text: str, found: object, tokenizer: Tokenizer | None = None) -> Recognized:
    chat = ChatTemplate({"default": text}, {}, response_template=found)
    return recognize(None, chat, tokenizer or tokenizer_with(TOKENS))


def family_of(found: object, tokenizer: Tokenizer | None = None) -> Family:
    family, refusal = read_response_template(found, tokenizer or tokenizer_with(TOKENS))
    assert family is not None, refusal
    return family


def read_all(
    family: Family, tokenizer: Tokenizer, ids: list[int], rng: random.Random | None = None
) -> Message:
    return read_in_all_ways(partial(decoder, family, tokenizer, tools=TOOLS), ids, rng)


def ids_of(tokenizer: Tokenizer, text: str) -> list[int]:
    """Encode a text. Marks become tokens where the tokenizer has them."""
    return tokenizer.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("tokens", [TOKENS, ()], ids=["tokens", "text"])
@pytest.mark.parametrize("name", FORMS)
def test_an_answer_is_read_as_it_is_described_however_it_arrives(name: str, tokens: tuple[str, ...]) -> None:
    calls, call = FORMS[name]
    tokenizer, rng = tokenizer_with(tokens), random.Random(name)
    family = family_of(described(calls), tokenizer)
    whole = f"<mull>\nTwo\n</mull>\n\nSure.\n{call}\n{call}"
    ids = ids_of(tokenizer, whole)
    message = read_all(family, tokenizer, ids, rng)
    meant = [Call("f", '{"n": 1}')]
    assert message == Message("Sure.", "Two", meant * 2)
    for _ in range(fast.num_examples(30)):
        damaged = ids.copy()
        at = rng.randrange(len(ids))
        damaged[at : at + rng.randint(0, 3)] = rng.choices(ids, k=rng.randint(0, 2))
        read_all(family, tokenizer, damaged[: rng.randint(at, len(damaged))], rng)


@pytest.mark.parametrize("name", REQUIRED)
def test_required_calls_have_the_described_form(name: str) -> None:
    tokenizer = tokenizer_with((*TOKENS, "<|end|>"))
    form = AnswerForm(family_of(described(FORMS[name][0]), tokenizer), ToolUse(TOOLS.tools, "required"))
    guide = answer_guide(form, tokenizer, None)
    assert guide is not None
    library_tokenizer = LLTokenizer(tokenizer.to_str(), eos_token=tokenizer.token_to_id("<|end|>"))
    made = matcher(library_tokenizer, grammar_of(guide, LLTokenizer("byte")))
    assert made.consume_tokens(ids_of(tokenizer, REQUIRED[name]))
    assert made.is_accepting()


@pytest.mark.parametrize("name", WRITTEN)
def test_it_is_taken_where_it_reads_the_calls_that_the_template_writes(name: str) -> None:
    text = template(WRITTEN[name], thought="<mull>{{ message.reasoning_content }}</mull>")
    found = described(FORMS[name][0])
    family = recognized(text, found).family
    assert family == family_of(found)
    assert (family.name, family.reasoning) == ("response-template", MULL)


def test_one_that_does_not_read_the_calls_of_the_template_tells_of_reasoning_alone() -> None:
    made = recognized(template(WRITTEN["the name in a header"]), described(JSON))
    assert "no model family reads" in made.warning
    assert (made.family.name, made.family.reasoning) == ("thinking", MULL)


def test_families_and_the_signs_of_one_come_first() -> None:
    found = described({**JSON, "transform": WHOLE})
    hermes = template(
        '<tool_call>{"name": "{{ tool.name }}", "arguments": {{ tool.arguments | tojson }}}</tool_call>'
    )
    for text, name in ((hermes, "hermes"), ("<arg_key>", "glm"), ("<think>", "response-template")):
        family = recognized(text, found).family
        assert family.name == name


def test_what_is_not_described_is_read_as_without_a_description() -> None:
    no_thought = {"start_anchor": "x", "fields": {"tool_calls": JSON}}
    assert family_of(no_thought).reasoning is None
    family = recognized("<think>", no_thought).family
    assert family.reasoning == FAMILIES["thinking"].reasoning
    no_calls = family_of(described())
    assert (no_calls.calls, no_calls.reasoning) == (FAMILIES["generic"].calls, MULL)


def test_the_longest_mark_is_read() -> None:
    mark = f"<{'a' * 126}>"
    family = family_of(described({**JSON, "open_pattern": "", "open": mark}))
    ids = ids_of(tokenizer_with(), mark + '{"name": "f"}')
    assert read_all(family, tokenizer_with(), ids).calls == [Call("f", "{}")]


def test_marks_around_content_are_left_out() -> None:
    content = {"open": "<|say|>", "close": ["<|said|>", "<|call|>"]}
    family = family_of(described(JSON, content=content))
    ids = ids_of(tokenizer_with(TOKENS), "<mull>Two</mull><|say|>Sure.<|said|>")
    message = read_all(family, tokenizer_with(TOKENS), ids)
    assert message == Message("Sure.", "Two")


UNUSABLE: dict[str, tuple[object, str]] = {
    "no object": ([1], "Expected `object`"),
    "no fields": ({"start_anchor": "x", "fields": {}}, "no marks"),
    "a later version": ({**described(JSON), "version": 2}, "version"),
    "a long mark": (described({**JSON, "close": "<" * 100_000}), "too long"),
    "many marks": (described({**JSON, "close": [f"<{n}>" for n in range(1000)]}), "too many"),
    "a long pattern": (described({**JSON, "open_pattern": r"\s*" * 50_000}), "not literal"),
    "half of a character": (described({**JSON, "close": "\udc80"}), "no text"),
    "a mark that begins with another": (described({**JSON, "close": "<mull>!"}), "begins with another"),
    "a mark like a value": (described({**JSON, "close": "}}>"}), "like a value"),
    "a name without a use": (described({**HEADER, "transform": WHOLE}), "not used"),
    "no mark before calls": (described({"content": "json"}), "no mark opens calls"),
    "a reasoning without end": (
        described(thinking={"open": "<a>"}, reasoning_content={"open": "<a>"}),
        "closes",
    ),
    "several marks of reasoning": (
        described(reasoning_content={**THOUGHT, "open": ["<a>", "<b>"]}),
        "several",
    ),
    "another value of a transform": (described({**JSON, "transform": {"function": {"name": 1}}}), "keys"),
    "a name without a mark after it": (
        described({**HEADER, "open_pattern": r"<\|act\|>(?P<name>\w+)\s*"}),
        "mark before or after",
    ),
    "tags": (described({**JSON, "content": "xml-inline", "content_args": {"tag_pattern": "(a+)+$"}}), "JSON"),
    "keys without quotes": (described({**JSON, "content_args": {"unquoted_keys": True}}), "JSON"),
    "a pattern that takes long": (described({**JSON, "close_pattern": "(a+)+" * 20}), "not literal"),
}


@pytest.mark.parametrize("name", UNUSABLE)
def test_what_can_not_be_used_is_told_at_once(name: str) -> None:
    found, reason = UNUSABLE[name]
    start_s = time.thread_time()
    made = recognized("{{ tools }}", found)
    assert made.family is None
    assert made.warning.startswith("response_template in tokenizer_config.json is not used: ")
    assert reason in made.warning
    assert len(made.warning) < 300
    assert time.thread_time() - start_s < 5
    unread = recognized(template("<|act|>{{ tool.arguments.place }}"), found)
    assert "no model family reads" in unread.warning
    assert reason in unread.warning


def test_any_description_is_read_or_refused() -> None:
    """And what it makes reads any answer in the same way however it arrives."""
    rng, num_families = random.Random(3), 0
    values = (None, 1, [], {}, True, "", "<", "<a>", "{", "]", "|", ["<a>", "<b"], "\0", [[]])
    for _ in range(fast.num_examples(400)):
        calls, _ = rng.choice([*FORMS.values()])
        fields: dict[str, Any] = copy.deepcopy(described(calls)["fields"])
        for _ in range(rng.randint(1, 3)):
            field = fields[rng.choice([*fields])]
            field[rng.choice([*JSON, "close_pattern", "transform", "content_args"])] = rng.choice(values)
        tokenizer = tokenizer_with(rng.choice([TOKENS, ()]))
        family, refusal = read_response_template({"fields": fields}, tokenizer)
        assert (family is None) == bool(refusal)
        if family is not None:
            num_families += 1
            marks = [*family.calls.markers, "<mull>", "</mull>", '{"name": "f", ', '"arguments": {}}', *"<a"]
            text = "".join(rng.choices(marks, k=9))
            read_all(family, tokenizer, ids_of(tokenizer, text), rng)
    assert num_families


def test_the_description_is_that_of_tokenizer_config(tmp_path: Path) -> None:
    found = described({**JSON, "transform": WHOLE})
    config = {"chat_template": template(WRITTEN["an object"]), "response_template": found}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    family = recognize(None, load_chat_template(tmp_path, None), tokenizer_with(TOKENS)).family
    assert family.name == "response-template"
