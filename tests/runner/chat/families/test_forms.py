"""What single families write beyond the forms of ``forms.py``."""

import json
import re
from functools import partial
from typing import Any

import pytest

from runner.chat.families.tools import ToolUse
from tests.runner.chat.families.answers import (
    Call,
    Message,
    Writer,
    decoder,
    message_of,
    read,
    read_in_all_ways,
    tokenizer_with,
    tool_use,
)
from tests.runner.chat.families.forms import FORMS

TOOLS = tool_use(f={"text": {"type": "string"}, "n": {"type": "integer"}, "any": {}}, get_weather={})


def read_text(name: str, text: str, *, starts_in_reasoning: bool = False, tools: ToolUse = TOOLS) -> Message:
    """``text`` with the family's markers as tokens, token by token and at once."""
    form = FORMS[name]
    tokenizer = tokenizer_with(form.special, form.added)
    writer = Writer(tokenizer)
    tokens = [*form.special, *form.added]
    for part in re.split(f"({'|'.join(map(re.escape, tokens)) or '(?!)'})", text):
        (writer.marker if part in tokens else writer.text)(part)
    make = partial(decoder, form.family, tokenizer, tools=tools, starts_in_reasoning=starts_in_reasoning)
    return read_in_all_ways(make, writer.ids)


def called(arguments: str) -> list[Call]:
    return [Call("f", arguments)]


def rows(tables: dict[str, list[tuple[str, Any]]]) -> list[tuple[str, str, Any]]:
    return [(name, *row) for name, table in tables.items() for row in table]


SAME = None
"""The text is content, as it is."""
F = called("{}")
F_TEXT = called('{"text": "a"}')
FINAL = "<|start|>assistant<|channel|>final<|message|>"
KIMI_CALL = "<|tool_call_begin|>f:0<|tool_call_argument_begin|>{}<|tool_call_end|>"
PARAMETERS = """<tool_call>
<function=f>
<parameter=n>
5
</parameter>
<parameter=any>

x

</parameter>
<parameter=text>
</parameter>
</function>
</tool_call>"""
QWEN = "<tool_call>\n<function=f>\n{}\n</function>\n</tool_call>"
DSML_CALL = '<｜DSML｜function_calls><｜DSML｜invoke name="f">{}</｜DSML｜invoke></｜DSML｜function_calls>'
DSML_TEXT = '<｜DSML｜parameter name="text" string="true">'

DSML = """Hm.<｜DSML｜function_calls>
<｜DSML｜invoke name="f">
<｜DSML｜parameter name="n" string="false">5</｜DSML｜parameter>
<｜DSML｜parameter name="text" string="true"> 5
</｜DSML｜parameter>
<｜DSML｜parameter name="any" string="true">x</｜DSML｜parameter>
</｜DSML｜inv>
<｜DSML｜invoke name="f">
</｜DSML｜invoke>
</｜DSML｜function_calls>"""


CALLS = """<tool_call>
{"name": "f", "arguments": {"text": "a</tool_call>}"}}
</tool_call>
<tool_call>
{"name": "x"}
</tool_call>"""
HERMES: list[tuple[str, Any]] = [
    (
        "<think>\nIt is é.\n</think>\n\nI look. " + CALLS,
        Message("I look. ", "It is é.", [*called('{"text": "a</tool_call>}"}'), Call("x", "{}")]),
    ),
    *((f"Hi <tool_call>{text} there", SAME) for text in ("oops", '{"foo": 1}', '{"name": 1}', "[]")),
    ('Hi <tool_call>{"name" "a"} there', SAME),
    ('Hi <tool_call>{"name": "f" ] there', Message("Hi ", "", called(""))),
    ('a <tool_call>{"name": "ab"', Message("a ", "", [Call("ab", "")])),
    ('a <tool_call>{"name": "f", "arguments": {"x": "', Message("a ", "", called('{"x": "'))),
]
"""Texts of the form, whether its markers are tokens or not."""
TEXTS: dict[str, list[tuple[str, Any]]] = {
    "hermes": [
        ('<tool_call>{"arguments": {"text": "a"}, "name": "f"}</tool_call>', F_TEXT),
        ('<tool_call>{"name": "f", "arguments": "{\\"text\\": \\"a\\"}"}', F_TEXT),
        ('<tool_call>{"name": "f", "arguments": null}}\n</tool_call>', F),
        ('<tool_call>[{"name": "f"}, {"name": "f"}]</tool_call>.', Message(".", "", F * 2)),
        ('<tool_call>{"type": "function", "function": {"name": "f"}}', F),
        ('<tool_call>{"name": "f", "arguments": {}}<tool_call>{"name": "f"}', F * 2),
        ('<tool_call>{"name": "f", "arguments": {}} oops</tool_call>!', Message("oops!", "", F)),
        ("<think>a</think>b</think>c", Message("bc", "a")),
        ("<tool_call>\n{'name': 'f'}\n</tool_call>", SAME),
        ("hm\n</think>\n\nYes", SAME),
        ("\n</think>\n\nYes", "Yes"),
        ("<think>a</think></think>\n\nYes", Message("Yes", "a")),
        ('a \n\n<tool_call>{"name": "f"}</tool_call>\nb\n ', Message("a \n\nb\n ", "", F)),
        ('a<tool_call>{"name": "f"}</tool_call>\n\nb', Message("a\n\nb", "", F)),
        ('a<tool_call>{"name": "f"}</tool_call>\n\n', Message("a", "", F)),
        ("a\n<think>b</think>\n\nc", Message("a\nc", "b")),
        ("a\n\n<tool_call> b", SAME),
        ("a\n\n<think>b", Message("a\n\n", "b")),
        *HERMES,
    ],
    "hermes, markers as text": [("a <think> b", SAME), *HERMES],
    "qwen3-coder": [
        ("<function=f>\n</function>\n</tool_call>", F),
        ("Use <function=g> here", SAME),
        (PARAMETERS, called('{"n": 5, "any": "\\nx\\n", "text": ""}')),
        (
            "<function=f>\n<parameter=text>\n\na\nb\n\n\nc\n\n</parameter>\n</function>\n</tool_call>",
            called('{"text": "\\na\\nb\\n\\n\\nc\\n"}'),
        ),
    ],
    "llama3": [
        ('{"name": "f"}', F),
        ('{"name": "Bob"}', SAME),
        ('{"name": "Bob", "age": 3}', SAME),
        ('Here: {"name": "f"}; {"name": "f"} ok?', Message("Here: ok?", "", F * 2)),
        ('if {x} {"name": "Bob"} {', SAME),
        ('[{"name": "f", "parameters": {}}]', F),
        ('<|python_tag|>print("hi")', 'print("hi")'),
        ("<|python_tag|>f.call(text='a')", F_TEXT),
        ("<|python_tag|>f.call()", F),
        ("<|python_tag|>g.call()", "g.call()"),
        ("[1, 2]", SAME),
        ('{"type": "function", "function": "f", "parameters": {}}', F),
    ],
    "deepseek-v3.2": [
        (DSML, Message("Hm.", "", [Call("f", '{"n": 5, "text": " 5\\n", "any": "x"}'), *F])),
        (DSML_CALL.format('\n{"text": "a</｜DSML｜invoke>"}\n'), called('{"text": "a</｜DSML｜invoke>"}')),
        (f"<think>a {DSML_CALL.format('')}\nb", Message("b", "a", F)),
        ("<think>a <｜DSML｜function_calls> b", Message("", "a <｜DSML｜function_calls> b")),
        (
            'a\n<｜DSML｜invoke name="f">\n</｜DSML｜invoke>\n<｜DSML｜invoke name="f">\n</｜DSML｜invoke>\n',
            Message("a", "", F * 2),
        ),
        ('<think>a <｜DSML｜invoke name="f"> b', Message("", 'a <｜DSML｜invoke name="f"> b')),
        ("a\n<｜DSML｜function_calls>\n<｜DSML｜invoke na", "a\n"),
        ('<｜DSML｜function_calls>{"name": "f"}</｜DSML｜function_calls>', F),
        ("<｜DSML｜function_calls> none", SAME),
    ],
    "deepseek-v4": [('<｜DSML｜toolcalls>\n<｜DSML｜invoke name="f">\n</｜DSML｜invoke>', F)],
    "command-r": [
        ("<|START_TEXT|>Hi.<|END_TEXT|>", "Hi."),
        ("<|START_RESPONSE|>Hi.<|END_RESPONSE|>", "Hi."),
        ("<|START_THINKING|>Hm.<|END_THINKING|><|START_TEXT|>Hi.<|END_TEXT|>", Message("Hi.", "Hm.")),
        (
            '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {}}]<|END_ACTION|>',
            [Call("f", "{}", "0")],
        ),
        ("<|START_ACTION|>[]\n<|END_ACTION|><|START_TEXT|>a<|END_TEXT|>", "a"),
    ],
    "llama4": [
        ("[f(), f( text = 'a' ,)]", [*F, *F_TEXT]),
        ("[link](url) [f(x)]", SAME),
        (
            r"""[f(n=-1, any=[{'a': (1, None)}, "it's ,)"], text='\'\\')]""",
            called('{"n": -1, "any": [{"a": [1, null]}, "it\'s ,)"], "text": "\'\\\\"}'),
        ),
        ("[f(any={'a': [true, null, 5]})]", called('{"any": {"a": [true, null, 5]}}')),
        ("[f(n=oops, any=true)]", called('{"n": "oops", "any": true}')),
        ('{"name": "f", "parameters": {}}', F),
        ('<|python_start|>{"name": "f"}<|python_end|>', F),
        ('{"a": 1}', SAME),
        ('[{"a": 1}]', SAME),
    ],
    "lfm2": [
        (
            '<|tool_call_start|>[{"name": "f", "arguments": {}}, {"name": "f"}]<|tool_call_end|>a',
            Message("a", "", F * 2),
        ),
        (
            "<|tool_call_start|>[f(text='a\nb', any={'x': \"\\n\n\"})]<|tool_call_end|>",
            called('{"text": "a\\nb", "any": {"x": "\\n\\n"}}'),
        ),
    ],
    "deepseek-v3.1": [
        ("<｜tool▁call▁begin｜>f<｜tool▁sep｜><｜tool▁call▁end｜>", F),
        ("<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>", F),
    ],
    "mistral v11": [('[TOOL_CALLS][{"name": "f", "arguments": {}}]', F)],
    "mistral v13": [
        ('[TOOL_CALLS]f{"text": "a"}', F_TEXT),
        ("[TOOL_CALLS]no call", "no call"),
        ("[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]no call", Message("no call", "", F)),
        ("[THINK]a[TOOL_CALLS]f[ARGS]{}", Message("", "a", F)),
    ],
    "glm": [
        ("<tool_call>f</tool_call>", F),
        ("<tool_call>f<arg_key>n</arg_key><arg_value>01</arg_value></tool_call>", called('{"n": "01"}')),
    ],
    "gpt-oss": [
        ("<|channel|>analysis to=functions.f code<|message|>{}", F),
        (" to=functions.f<|channel|>commentary<|message|>{}", F),
        ("<|channel|>commentary<|message|>I look.<|end|>", "I look."),
        ("total: 5", SAME),
        (f"<|channel|>commentary to=assistant<|message|>{{}}<|end|>{FINAL}a", "a"),
        ("<|channel|>commentary to=assistant<|channel|>final<|message|>a", "a"),
        ("<|channel|>commentary to=assistant<|channel|>analysis<|message|>a", Message("", "a")),
        ("<|channel|>analysis to=python code<|message|>1 + 1<|call|>", Message("", "1 + 1")),
        ("<|channel|>commentary to=browser.search<|message|>{}", Message()),
        ("<|channel|>commentary to=math.sum<|message|><|call|>", [Call("math.sum", "{}")]),
        ('<|channel|>final {"a": 1}<|return|>', '{"a": 1}'),
        ("<|channel|>final <|constrain|>json {}", "{}"),
        ("<|channel|>analysis Hm.<|end|><|start|>assistant<|channel|>final", Message("", "Hm.")),
        ("<|channel|>commentary to=functions.f <|constrain|>json", Message()),
        ("to", SAME),
    ],
    "kimi-k2": [
        ("<|tool_calls_section_begin|>oops", "oops"),
        (
            f"<|tool_call_section_begin|>{KIMI_CALL}<|tool_call_section_end|>.",
            Message(".", "", [Call("f", "{}", "f:0")]),
        ),
        ("a <|tool_calls_section_begin|>\n<|tool_calls_section_end|>b", "a b"),
        ("<think>a<|tool_calls_section_begin|><|tool_calls_section_end|> b", Message("b", "a")),
    ],
    "command-r-2024": [
        ('I look.\nAction:\n```json\n[{"tool_name": "f", "parameters": {}}]```', Message("I look.", "", F)),
        ('Action: ```json\n[{"tool_name": "directly-answer", "parameters": {}}]\n```', Message()),
        ('Action: ```json\n[{"parameters": {}, "tool_name": "directly_answer"}, {"tool_name": "f"}]```', F),
        ('Action: ```json\n{"a": 1}\n``` `', SAME),
    ],
    "granite": [
        ("<response>a</response> b", "a b"),
        ("<response>\na\n\n</response>\n", "a"),
        ("<response>\na\n</response>\nb", "a\n\nb"),
        ("a <response> b", SAME),
        ('<tool_call>[{"name": "f", "arguments": {}}]', F),
    ],
    "phi4, functools": [("functools is a module", SAME)],
    "xlam": [
        ("```json\n[]\n```", SAME),
        ('[{"name": "f", "arguments": {}}]', F),
        ('I look.[TOOL_CALLS][{"name": "f", "arguments": {}}]', Message("I look.", "", F)),
        ('<tool_call>[{"name": "f", "arguments": {}}]</tool_call>', F),
        ('```json\n{"name": "Bob"}\n```', SAME),
    ],
    "generic": [('{"answer": 5}', SAME)],
    "gemma-4": [
        ("<|tool_call>call:f{text:75001,n:5}<tool_call|>", called('{"text": "75001", "n": 5}')),
        (
            "<|tool_call>call:f{text:a b,any:{x:[1,true]}}<tool_call|>",
            called('{"text": "a b", "any": {"x": [1, true]}}'),
        ),
    ],
    "functionary": [("all\nI look.>>>f\n{}", Message("I look.", "", F))],
    "functionary-3.1": [("The <function=f> tag", SAME), ("<function=f></function>", F)],
    "apertus": [('<|tools_prefix|>[{"f": {}}, {"f": {}}]<|tools_suffix|>', F * 2)],
    "k2-horizon": [('<ifm|tool_calls><ifm|tool_call>{"name": "f"}</ifm|tool_call></ifm|tool_calls>', F)],
    "minicpm-5": [('<function name="f"><param name="text"><![CDATA[a]]></param></function>', F_TEXT)],
    "minimax-m3": [("]<]minimax[>[ no call", SAME)],
}


@pytest.mark.parametrize(("name", "text", "expected"), rows(TEXTS))
def test_a_text_is_read(name: str, text: str, expected: Any) -> None:
    message = read_text(name, text)
    if isinstance(expected, list):
        expected = Message(calls=expected)
    assert message == (Message(expected) if isinstance(expected, str) else expected or Message(text))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("hermes", '<tool_call>{"name": "f", "arguments": %s}</tool_call>'),
        ("hermes", '<tool_call>{"arguments": %s, "name": "f"}</tool_call>'),
        ("llama3", '{"name": "f", "parameters": %s}'),
        ("mistral v13", "[TOOL_CALLS]f[ARGS]%s"),
        ("xlam", '[{"name": "f", "arguments": %s}]'),
    ],
)
def test_line_breaks_in_strings_of_arguments_are_escaped(name: str, text: str) -> None:
    written = '{"text": "a\n\tb\x0b\\n",\n "any": ["\r\n"]}'
    (call,) = read_text(name, text % written).calls
    assert call.arguments == '{"text": "a\\n\\tb\\u000b\\n",\n "any": ["\\r\\n"]}'
    assert json.loads(call.arguments) == json.loads(written, strict=False)
    (call,) = read_text(name, text % '{"sh": "curl \\\n -H \\\\\n\\\t"}').calls
    assert json.loads(call.arguments) == {"sh": "curl \\\n -H \\\n\\\t"}  # A backslash, before each of them.


UNENDED: dict[str, list[tuple[str, Any]]] = {
    "qwen3-coder": [
        (QWEN.format("<parameter=text>\na\n<parameter=n>\n5\n</parameter>"), [{"text": "a", "n": 5}]),
        (QWEN.format("<parameter=n>5<parameter=text>a"), [{"n": 5, "text": "a"}]),
        (QWEN.format("<parameter=text>\na\n</parameter>\n<parameter=n>\n5"), [{"text": "a", "n": 5}]),
        (QWEN.format("<parameter=text>a<parameter=n>5"), [{"text": "a", "n": 5}]),
        (
            QWEN.format("<parameter=text>\na <parameter=n>5</parameter>\n<parameter=n>\n5"),
            [{"text": "a <parameter=n>5", "n": 5}],
        ),
        ("<tool_call>\n<function=f>\n<parameter=text>\na\n</tool_call>", [{"text": "a"}]),
        (
            "<tool_call>\n<function=f>\n<parameter=text>\na\n<tool_call>\n<function=f>\n</function>\n</tool_call>",
            [{"text": "a"}, {}],
        ),
        ("<function=f><parameter=text>a<function=get_weather></function>", [{"text": "a"}, {}]),
        (
            QWEN.format(
                "<parameter=text>\n<parameter=x> </function> a <tool_call> </tool_call> x\n</parameter>"
            ),
            [{"text": "<parameter=x> </function> a <tool_call> </tool_call> x"}],
        ),
        (QWEN.format("<parameter=text>a\n</parameter>"), [{"text": "a\n"}]),
    ],
    "glm": [
        (
            "<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>a<arg_key>n</arg_key><arg_value>5</tool_call>",
            [{"text": "a", "n": 5}],
        ),
        (
            "<tool_call>f<arg_key>text</arg_key><arg_value>\na\n\n<arg_key>n</arg_key><arg_value>5</tool_call>",
            [{"text": "\na\n", "n": 5}],
        ),
        ("<tool_call>f<arg_key>text<arg_value>a</arg_value></tool_call>", [{"text": "a"}]),
        ("<tool_call>f<arg_key>text</arg_key>a</arg_value></tool_call>", [{"text": "a"}]),
        (
            "<tool_call>f<arg_key>text</arg_key><arg_value>a<arg_key> </tool_call> b</arg_value></tool_call>",
            [{"text": "a<arg_key> </tool_call> b"}],
        ),
        (
            "<tool_call>f<arg_key>text</arg_key><arg_value>a</tool_call>\n<tool_call>f</tool_call>",
            [{"text": "a"}, {}],
        ),
    ],
    "deepseek-v3.2": [
        (
            DSML_CALL.format(
                f'{DSML_TEXT}a <｜DSML｜parameter name="n" string="false">5</｜DSML｜parameter>'
            ),
            [{"text": "a ", "n": 5}],
        ),
        (DSML_CALL.format(f"{DSML_TEXT}a"), [{"text": "a"}]),
        (DSML_CALL.format(f"{DSML_TEXT}a\nb\n"), [{"text": "a\nb"}]),
        (
            DSML_CALL.replace("</｜DSML｜invoke>", "").format(f"{DSML_TEXT}a</｜DSML｜parameter>"),
            [{"text": "a"}],
        ),
    ],
    "gemma-4": [
        (
            '<|tool_call>call:f{text:<|"|>a<|"|>,n:5<tool_call|><|tool_call>call:f{<tool_call|>',
            [{"text": "a", "n": 5}, {}],
        )
    ],
}


@pytest.mark.parametrize(("name", "text", "expected"), rows(UNENDED))
def test_a_missing_end_marker_hides_nothing(name: str, text: str, expected: list[object]) -> None:
    message = read_text(name, text)
    assert [json.loads(call.arguments) for call in message.calls] == expected
    assert not message.content


def test_ordinary_tokens_that_spell_a_marker_stay_text() -> None:
    form = FORMS["hermes"]
    tokenizer = tokenizer_with(form.special, form.added)
    text = '<think> <tool_call>{"name": "a", "arguments": {}}</tool_call>'
    ids = Writer(tokenizer).text(text).ids
    assert message_of(read(decoder(form.family, tokenizer, tools=TOOLS), [ids])) == Message(text)
    ids = Writer(tokenizer).text("Well </think> ").marker("<tool_call>").text(" hm").ids
    made = decoder(form.family, tokenizer, tools=TOOLS, starts_in_reasoning=True)
    assert message_of(read(made, [ids])) == Message("", "Well </think> <tool_call> hm")


@pytest.mark.parametrize("text", ["", '{"name": "ab'])
def test_a_call_that_is_cut_off_in_its_name_is_left_out_where_a_token_marked_it(text: str) -> None:
    assert read_text("hermes", f"a <tool_call>{text}") == Message("a ")


def test_a_marker_that_is_cut_within_a_character_is_no_text() -> None:
    begin = '<｜DSML｜function_calls><｜DSML｜invoke name="f"><｜DSML｜parameter name="text" string="true">a'
    writer = Writer(tokenizer_with()).text(begin)
    end = Writer(writer.tokenizer).text("</｜DSML｜").ids
    for length in range(len(end) + 1):
        made = decoder(FORMS["deepseek-v3.2"].family, writer.tokenizer, tools=TOOLS)
        (call,) = message_of(read(made, [writer.ids, *([each] for each in end[:length])])).calls
        assert call.arguments == '{"text": "a', length


@pytest.mark.parametrize(
    ("name", "text", "call"),
    [
        ("hermes", '<tool_call>{"name": "a\\ud800"}', Call("a?", "{}")),
        (
            "hermes",
            '<tool_call>{"name": "f", "arguments": "{\\"a\\": \\"\\ud800\\"}"}',
            Call("f", '{"a": "?"}'),
        ),
        ("llama4", "[f(a='\\ud800\u00e9')]", Call("f", '{"a": "\\ud800\\u00e9"}')),
        ("llama4", "[f(a='\\ud83d\\udc0b')]", Call("f", '{"a": "\\ud83d\\udc0b"}')),
    ],
)
def test_half_a_character_is_never_text(name: str, text: str, call: Call) -> None:
    assert read_text(name, text).calls == [call]


def test_a_literal_that_is_nested_too_deeply_is_a_string() -> None:
    nested = "[" * 5000 + "]" * 5000
    (call,) = read_text("llama4", f"[f(any={nested})]").calls
    assert json.loads(call.arguments) == {"any": nested}


@pytest.mark.parametrize("schema", [{"type": 5}, {"type": True}, {"enum": 5}, {"type": {}, "enum": {}}])
def test_a_schema_that_is_not_valid_tells_no_type(schema: dict[str, object]) -> None:
    tools = tool_use(f={"n": schema})
    text = "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>5</arg_value>\n</tool_call>"
    assert read_text("glm", text, tools=tools) == Message(calls=called('{"n": 5}'))


@pytest.mark.parametrize("name", ["hermes", "gpt-oss", "kimi-k2", "command-r", "mistral v13"])
def test_reasoning_goes_on_where_the_prompt_opened_it(name: str) -> None:
    family = FORMS[name].family
    assert family.opens_reasoning(f"<user> hi <assistant> {family.reasoning.begin}\n")
    assert not family.opens_reasoning(f"<assistant> {family.reasoning.begin}\n\n{family.reasoning.end}\n\n")
    text = f"a{family.reasoning.end}"
    assert read_text(name, text, starts_in_reasoning=True) == Message("", "a")
