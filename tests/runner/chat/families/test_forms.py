"""What single families write beyond the forms of ``forms.py``."""

from __future__ import annotations

import json
import re

import pytest

from runner.chat.families.tools import ToolUse
from tests.runner.chat.families.answers import (
    Call,
    Message,
    Writer,
    decoder,
    message_of,
    read,
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
    messages = []
    for chunks in ([[each] for each in writer.ids], [writer.ids]):
        made = decoder(form.family, tokenizer, tools=tools, starts_in_reasoning=starts_in_reasoning)
        messages.append(message_of(read(made, chunks)))
    assert messages[0] == messages[1]
    return messages[0]


F = [Call("f", "{}")]
F_TEXT = [Call("f", '{"text": "a"}')]
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


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("hermes", '<tool_call>{"arguments": {"text": "a"}, "name": "f"}</tool_call>', Message(calls=F_TEXT)),
        ("hermes", '<tool_call>{"name": "f", "arguments": "{\\"text\\": \\"a\\"}"}', Message(calls=F_TEXT)),
        ("hermes", '<tool_call>{"name": "f", "arguments": null}}\n</tool_call>', Message(calls=F)),
        ("hermes", '<tool_call>[{"name": "f"}, {"name": "f"}]</tool_call>.', Message(".", "", F * 2)),
        ("hermes", '<tool_call>{"type": "function", "function": {"name": "f"}}', Message(calls=F)),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}}<tool_call>{"name": "f"}', Message(calls=F * 2)),
        ("hermes", '<tool_call>{"name": "f", "arguments": {}} oops</tool_call>!', Message("oops!", "", F)),
        ("hermes", "<think>a</think>b</think>c", Message("bc", "a")),
        ("hermes, markers as text", "a <think> b", Message("a <think> b")),
        (
            "hermes",
            "<tool_call>\n{'name': 'f'}\n</tool_call>",
            Message("<tool_call>\n{'name': 'f'}\n</tool_call>"),
        ),
        ("hermes", "hm\n</think>\n\nYes", Message("hm\n</think>\n\nYes")),
        ("hermes", "\n</think>\n\nYes", Message("Yes")),
        ("hermes", "<think>a</think></think>\n\nYes", Message("Yes", "a")),
        ("hermes", 'a \n\n<tool_call>{"name": "f"}</tool_call>\nb\n ', Message("a \n\nb\n ", "", F)),
        ("hermes", 'a<tool_call>{"name": "f"}</tool_call>\n\nb', Message("a\n\nb", "", F)),
        ("hermes", 'a<tool_call>{"name": "f"}</tool_call>\n\n', Message("a", "", F)),
        ("hermes", "a\n<think>b</think>\n\nc", Message("a\nc", "b")),
        ("hermes", "a\n\n<tool_call> b", Message("a\n\n<tool_call> b")),
        ("hermes", "a\n\n<think>b", Message("a\n\n", "b")),
        ("qwen3-coder", "<function=f>\n</function>\n</tool_call>", Message(calls=F)),
        ("qwen3-coder", "Use <function=g> here", Message("Use <function=g> here")),
        (
            "qwen3-coder",
            PARAMETERS,
            Message(calls=[Call("f", '{"n": 5, "any": "\\nx\\n", "text": ""}')]),
        ),
        (
            "qwen3-coder",
            "<function=f>\n<parameter=text>\n\na\nb\n\n\nc\n\n</parameter>\n</function>\n</tool_call>",
            Message(calls=[Call("f", '{"text": "\\na\\nb\\n\\n\\nc\\n"}')]),
        ),
        ("llama3", '{"name": "f"}', Message(calls=F)),
        ("llama3", '{"name": "Bob"}', Message('{"name": "Bob"}')),
        ("llama3", '{"name": "Bob", "age": 3}', Message('{"name": "Bob", "age": 3}')),
        ("llama3", 'Here: {"name": "f"}; {"name": "f"} ok?', Message("Here: ok?", "", F * 2)),
        ("llama3", 'if {x} {"name": "Bob"} {', Message('if {x} {"name": "Bob"} {')),
        ("llama3", '[{"name": "f", "parameters": {}}]', Message(calls=F)),
        ("llama3", '<|python_tag|>print("hi")', Message('print("hi")')),
        ("llama3", "<|python_tag|>f.call(text='a')", Message(calls=F_TEXT)),
        ("llama3", "<|python_tag|>f.call()", Message(calls=F)),
        ("llama3", "<|python_tag|>g.call()", Message("g.call()")),
        ("deepseek-v3.2", DSML, Message("Hm.", "", [Call("f", '{"n": 5, "text": " 5\\n", "any": "x"}'), *F])),
        (
            "deepseek-v3.2",
            DSML_CALL.format('\n{"text": "a</｜DSML｜invoke>"}\n'),
            Message(calls=[Call("f", '{"text": "a</｜DSML｜invoke>"}')]),
        ),
        ("deepseek-v3.2", f"<think>a {DSML_CALL.format('')}\nb", Message("b", "a", F)),
        ("deepseek-v3.2", "<think>a <｜DSML｜function_calls> b", Message("", "a <｜DSML｜function_calls> b")),
        (
            "deepseek-v4",
            '<｜DSML｜toolcalls>\n<｜DSML｜invoke name="f">\n</｜DSML｜invoke>',
            Message(calls=F),
        ),
        (
            "deepseek-v3.2",
            'a\n<｜DSML｜invoke name="f">\n</｜DSML｜invoke>\n<｜DSML｜invoke name="f">\n</｜DSML｜invoke>\n',
            Message("a", "", F * 2),
        ),
        (
            "deepseek-v3.2",
            '<think>a <｜DSML｜invoke name="f"> b',
            Message("", 'a <｜DSML｜invoke name="f"> b'),
        ),
        ("deepseek-v3.2", "a\n<｜DSML｜function_calls>\n<｜DSML｜invoke na", Message("a\n")),
        ("deepseek-v3.2", '<｜DSML｜function_calls>{"name": "f"}</｜DSML｜function_calls>', Message(calls=F)),
        ("deepseek-v3.2", "<｜DSML｜function_calls> none", Message("<｜DSML｜function_calls> none")),
        ("command-r", "<|START_TEXT|>Hi.<|END_TEXT|>", Message("Hi.")),
        ("command-r", "<|START_RESPONSE|>Hi.<|END_RESPONSE|>", Message("Hi.")),
        (
            "command-r",
            "<|START_THINKING|>Hm.<|END_THINKING|><|START_TEXT|>Hi.<|END_TEXT|>",
            Message("Hi.", "Hm."),
        ),
        ("llama3", "[1, 2]", Message("[1, 2]")),
        ("llama4", "[f(), f( text = 'a' ,)]", Message(calls=[*F, *F_TEXT])),
        ("llama4", "[link](url) [f(x)]", Message("[link](url) [f(x)]")),
        (
            "llama4",
            r"""[f(n=-1, any=[{'a': (1, None)}, "it's ,)"], text='\'\\')]""",
            Message(calls=[Call("f", '{"n": -1, "any": [{"a": [1, null]}, "it\'s ,)"], "text": "\'\\\\"}')]),
        ),
        (
            "llama4",
            "[f(any={'a': [true, null, 5]})]",
            Message(calls=[Call("f", '{"any": {"a": [true, null, 5]}}')]),
        ),
        ("llama4", "[f(n=oops, any=true)]", Message(calls=[Call("f", '{"n": "oops", "any": true}')])),
        ("llama4", '{"name": "f", "parameters": {}}', Message(calls=F)),
        ("llama4", '<|python_start|>{"name": "f"}<|python_end|>', Message(calls=F)),
        ("llama4", '{"a": 1}', Message('{"a": 1}')),
        ("llama4", '[{"a": 1}]', Message('[{"a": 1}]')),
        (
            "lfm2",
            '<|tool_call_start|>[{"name": "f", "arguments": {}}, {"name": "f"}]<|tool_call_end|>a',
            Message("a", "", F * 2),
        ),
        (
            "lfm2",
            "<|tool_call_start|>[f(text='a\nb', any={'x': \"\\n\n\"})]<|tool_call_end|>",
            Message(calls=[Call("f", '{"text": "a\\nb", "any": {"x": "\\n\\n"}}')]),
        ),
        ("llama3", '{"type": "function", "function": "f", "parameters": {}}', Message(calls=F)),
        ("deepseek-v3.1", "<｜tool▁call▁begin｜>f<｜tool▁sep｜><｜tool▁call▁end｜>", Message(calls=F)),
        ("mistral v11", '[TOOL_CALLS][{"name": "f", "arguments": {}}]', Message(calls=F)),
        ("mistral v13", '[TOOL_CALLS]f{"text": "a"}', Message(calls=F_TEXT)),
        ("mistral v13", "[TOOL_CALLS]no call", Message("no call")),
        ("mistral v13", "[TOOL_CALLS]f[ARGS]{}[TOOL_CALLS]no call", Message("no call", "", F)),
        ("mistral v13", "[THINK]a[TOOL_CALLS]f[ARGS]{}", Message("", "a", F)),
        ("deepseek-v3.1", "<｜tool▁call▁begin｜>f<｜tool▁sep｜>{}<｜tool▁call▁end｜>", Message(calls=F)),
        ("glm", "<tool_call>f</tool_call>", Message(calls=F)),
        (
            "glm",
            "<tool_call>f<arg_key>n</arg_key><arg_value>01</arg_value></tool_call>",
            Message(calls=[Call("f", '{"n": "01"}')]),
        ),
        ("gpt-oss", "<|channel|>analysis to=functions.f code<|message|>{}", Message(calls=F)),
        ("gpt-oss", " to=functions.f<|channel|>commentary<|message|>{}", Message(calls=F)),
        ("gpt-oss", "<|channel|>commentary<|message|>I look.<|end|>", Message("I look.")),
        ("gpt-oss", "total: 5", Message("total: 5")),
        (
            "gpt-oss",
            f"<|channel|>commentary to=assistant<|message|>{{}}<|end|>{FINAL}a",
            Message("a"),
        ),
        ("gpt-oss", "<|channel|>commentary to=assistant<|channel|>final<|message|>a", Message("a")),
        ("gpt-oss", "<|channel|>commentary to=assistant<|channel|>analysis<|message|>a", Message("", "a")),
        ("gpt-oss", "<|channel|>analysis to=python code<|message|>1 + 1<|call|>", Message("", "1 + 1")),
        ("gpt-oss", "<|channel|>commentary to=browser.search<|message|>{}", Message()),
        (
            "gpt-oss",
            "<|channel|>commentary to=math.sum<|message|><|call|>",
            Message(calls=[Call("math.sum", "{}")]),
        ),
        ("gpt-oss", '<|channel|>final {"a": 1}<|return|>', Message('{"a": 1}')),
        ("gpt-oss", "<|channel|>final <|constrain|>json {}", Message("{}")),
        ("gpt-oss", "<|channel|>analysis Hm.<|end|><|start|>assistant<|channel|>final", Message("", "Hm.")),
        ("gpt-oss", "<|channel|>commentary to=functions.f <|constrain|>json", Message()),
        ("gpt-oss", "to", Message("to")),
        ("kimi-k2", "<|tool_calls_section_begin|>oops", Message("oops")),
        (
            "kimi-k2",
            f"<|tool_call_section_begin|>{KIMI_CALL}<|tool_call_section_end|>.",
            Message(".", "", [Call("f", "{}", "f:0")]),
        ),
        ("kimi-k2", "a <|tool_calls_section_begin|>\n<|tool_calls_section_end|>b", Message("a b")),
        (
            "kimi-k2",
            "<think>a<|tool_calls_section_begin|><|tool_calls_section_end|> b",
            Message("b", "a"),
        ),
        (
            "command-r-2024",
            'I look.\nAction:\n```json\n[{"tool_name": "f", "parameters": {}}]```',
            Message("I look.", "", F),
        ),
        (
            "command-r-2024",
            'Action: ```json\n[{"tool_name": "directly-answer", "parameters": {}}]\n```',
            Message(),
        ),
        (
            "command-r-2024",
            'Action: ```json\n[{"parameters": {}, "tool_name": "directly_answer"}, {"tool_name": "f"}]```',
            Message(calls=F),
        ),
        ("command-r-2024", 'Action: ```json\n{"a": 1}\n``` `', Message('Action: ```json\n{"a": 1}\n``` `')),
        ("granite", "<response>a</response> b", Message("a b")),
        ("granite", "<response>\na\n\n</response>\n", Message("a")),
        ("granite", "<response>\na\n</response>\nb", Message("a\n\nb")),
        ("granite", "a <response> b", Message("a <response> b")),
        ("granite", '<tool_call>[{"name": "f", "arguments": {}}]', Message(calls=F)),
        ("phi4, functools", "functools is a module", Message("functools is a module")),
        (
            "command-r",
            '<|START_ACTION|>[{"tool_call_id": "0", "tool_name": "f", "parameters": {}}]<|END_ACTION|>',
            Message(calls=[Call("f", "{}", "0")]),
        ),
        ("command-r", "<|START_ACTION|>[]\n<|END_ACTION|><|START_TEXT|>a<|END_TEXT|>", Message("a")),
        ("xlam", "```json\n[]\n```", Message("```json\n[]\n```")),
        ("generic", '{"answer": 5}', Message('{"answer": 5}')),
        ("xlam", '[{"name": "f", "arguments": {}}]', Message(calls=F)),
        ("xlam", 'I look.[TOOL_CALLS][{"name": "f", "arguments": {}}]', Message("I look.", "", F)),
        ("xlam", '<tool_call>[{"name": "f", "arguments": {}}]</tool_call>', Message(calls=F)),
        ("xlam", '```json\n{"name": "Bob"}\n```', Message('```json\n{"name": "Bob"}\n```')),
        (
            "gemma-4",
            "<|tool_call>call:f{text:75001,n:5}<tool_call|>",
            Message(calls=[Call("f", '{"text": "75001", "n": 5}')]),
        ),
        (
            "gemma-4",
            "<|tool_call>call:f{text:a b,any:{x:[1,true]}}<tool_call|>",
            Message(calls=[Call("f", '{"text": "a b", "any": {"x": [1, true]}}')]),
        ),
        ("functionary", "all\nI look.>>>f\n{}", Message("I look.", "", F)),
        ("functionary-3.1", "The <function=f> tag", Message("The <function=f> tag")),
        ("functionary-3.1", "<function=f></function>", Message(calls=F)),
        ("apertus", '<|tools_prefix|>[{"f": {}}, {"f": {}}]<|tools_suffix|>', Message(calls=F * 2)),
        (
            "k2-horizon",
            '<ifm|tool_calls><ifm|tool_call>{"name": "f"}</ifm|tool_call></ifm|tool_calls>',
            Message(calls=F),
        ),
        (
            "minicpm-5",
            '<function name="f"><param name="text"><![CDATA[a]]></param></function>',
            Message(calls=F_TEXT),
        ),
        ("minimax-m3", "]<]minimax[>[ no call", Message("]<]minimax[>[ no call")),
    ],
)
def test_a_text_is_read(name: str, text: str, message: Message) -> None:
    assert read_text(name, text) == message
    assert all(json.loads(call.arguments) is not None for call in message.calls)


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        (
            "qwen3-coder",
            QWEN.format("<parameter=text>\na\n<parameter=n>\n5\n</parameter>"),
            [{"text": "a", "n": 5}],
        ),
        ("qwen3-coder", QWEN.format("<parameter=n>5<parameter=text>a"), [{"n": 5, "text": "a"}]),
        (
            "qwen3-coder",
            QWEN.format("<parameter=text>\na\n</parameter>\n<parameter=n>\n5"),
            [{"text": "a", "n": 5}],
        ),
        ("qwen3-coder", QWEN.format("<parameter=text>a<parameter=n>5"), [{"text": "a", "n": 5}]),
        (
            "qwen3-coder",
            QWEN.format("<parameter=text>\na <parameter=n>5</parameter>\n<parameter=n>\n5"),
            [{"text": "a <parameter=n>5", "n": 5}],
        ),
        ("qwen3-coder", "<tool_call>\n<function=f>\n<parameter=text>\na\n</tool_call>", [{"text": "a"}]),
        (
            "qwen3-coder",
            "<tool_call>\n<function=f>\n<parameter=text>\na\n<tool_call>\n<function=f>\n</function>\n</tool_call>",
            [{"text": "a"}, {}],
        ),
        (
            "qwen3-coder",
            "<function=f><parameter=text>a<function=get_weather></function>",
            [{"text": "a"}, {}],
        ),
        (
            "qwen3-coder",
            QWEN.format(
                "<parameter=text>\n<parameter=x> </function> a <tool_call> </tool_call> x\n</parameter>"
            ),
            [{"text": "<parameter=x> </function> a <tool_call> </tool_call> x"}],
        ),
        ("qwen3-coder", QWEN.format("<parameter=text>a\n</parameter>"), [{"text": "a\n"}]),
        (
            "glm",
            "<tool_call>f\n<arg_key>text</arg_key>\n<arg_value>a<arg_key>n</arg_key><arg_value>5</tool_call>",
            [{"text": "a", "n": 5}],
        ),
        (
            "glm",
            "<tool_call>f<arg_key>text</arg_key><arg_value>\na\n\n<arg_key>n</arg_key><arg_value>5</tool_call>",
            [{"text": "\na\n", "n": 5}],
        ),
        ("glm", "<tool_call>f<arg_key>text<arg_value>a</arg_value></tool_call>", [{"text": "a"}]),
        ("glm", "<tool_call>f<arg_key>text</arg_key>a</arg_value></tool_call>", [{"text": "a"}]),
        (
            "glm",
            "<tool_call>f<arg_key>text</arg_key><arg_value>a<arg_key> </tool_call> b</arg_value></tool_call>",
            [{"text": "a<arg_key> </tool_call> b"}],
        ),
        (
            "glm",
            "<tool_call>f<arg_key>text</arg_key><arg_value>a</tool_call>\n<tool_call>f</tool_call>",
            [{"text": "a"}, {}],
        ),
        (
            "deepseek-v3.2",
            DSML_CALL.format(
                f'{DSML_TEXT}a <｜DSML｜parameter name="n" string="false">5</｜DSML｜parameter>'
            ),
            [{"text": "a ", "n": 5}],
        ),
        ("deepseek-v3.2", DSML_CALL.format(f"{DSML_TEXT}a"), [{"text": "a"}]),
        ("deepseek-v3.2", DSML_CALL.format(f"{DSML_TEXT}a\nb\n"), [{"text": "a\nb"}]),
        (
            "deepseek-v3.2",
            DSML_CALL.replace("</｜DSML｜invoke>", "").format(f"{DSML_TEXT}a</｜DSML｜parameter>"),
            [{"text": "a"}],
        ),
        (
            "gemma-4",
            '<|tool_call>call:f{text:<|"|>a<|"|>,n:5<tool_call|><|tool_call>call:f{<tool_call|>',
            [{"text": "a", "n": 5}, {}],
        ),
    ],
)
def test_a_missing_end_marker_hides_nothing(name: str, text: str, arguments: list[object]) -> None:
    message = read_text(name, text)
    assert [json.loads(call.arguments) for call in message.calls] == arguments
    assert not message.content


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
    assert read_text("glm", text, tools=tools) == Message(calls=[Call("f", '{"n": 5}')])


@pytest.mark.parametrize("name", ["hermes", "gpt-oss", "kimi-k2", "command-r", "mistral v13"])
def test_reasoning_goes_on_where_the_prompt_opened_it(name: str) -> None:
    family = FORMS[name].family
    assert family.reasoning is not None
    assert family.opens_reasoning(f"<user> hi <assistant> {family.reasoning.begin}\n")
    text = f"a{family.reasoning.end}"
    assert read_text(name, text, starts_in_reasoning=True) == Message("", "a")
