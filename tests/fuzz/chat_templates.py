"""A hostile model's chat template: a text, or E17xx; nothing of ours in it."""

from __future__ import annotations

from errors.coded_error import CodedError
from runner.chat.jinja import compile_template, reason_of
from runner.chat.template import ChatTemplate
from tests.fuzz.choices import Choices
from tests.fuzz.refusal import check_refusal

_ROOTS = (
    *("messages", "self", "cycler", "joiner", "namespace", "lipsum", "range", "dict", "raise_exception"),
    "''",
    *("strftime_now", "loop", "caller", "varargs", "[]", "1", "none", "undefined_name", "messages[0]"),
    "true",
)
_STEPS = (
    *(".__class__", ".__globals__", ".__init__", "['__class__']", "|attr('__class__')", ".mro()", "._", "()"),
    *(".format", "|format(1)", "|map(attribute='__class__')", "|list", "|join", "|string", "|tojson"),
    *("[0]", "~1"),
    *(".__subclasses__()", "|attr('\\x5f\\x5fclass\\x5f\\x5f')", "|first", ".func_globals", ".gi_frame"),
    "('x')",
    *("|upper", ".append(1)", "|replace('a','b')", "|center(9)", "%3", "*3", "|batch(2)|list", "is string"),
    "+1",
)
_BLOCKS = (
    *("{% for m in messages %}", "{% endfor %}", "{% if ", "{% endif %}", "{% set x = ", "{% macro f() %}"),
    "%}",
    *("{% endmacro %}", "{% generation %}", "{% endgeneration %}", "{% include 'x' %}"),
    "{% import 'x' as y %}",
    *("{% extends 'x' %}", "{% raw %}", "{% endraw %}", "{# ", "{{", "}}", "{% break %}", "{%- do 1 %}"),
    "-%}",
    *("{{ f() }}", "{% call f() %}", "{% filter upper %}", "{% with %}", "{% block b %}"),
    "{% autoescape true %}",
)


def chat_template(data: bytes) -> None:
    """In this process, so that coverage guides: what is drawn here has no loops that could be long."""
    choices = Choices(data)
    source = _source(choices)
    try:
        text = compile_template(source).render({"messages": [{"role": "user", "content": "hi"}]})
    except Exception as exc:  # noqa: BLE001 - what a template may fail with is all there is
        assert reason_of(exc)
        return
    assert "<module " not in text
    assert "'__name__':" not in text


def _source(choices: Choices) -> str:
    parts = []
    for _ in range(choices.below(5)):
        steps = "".join(choices.some(_STEPS, 4))
        parts.append(choices.of(("", "", choices.of(_BLOCKS), choices.text())))
        parts.append(f"{{{{ {choices.of(_ROOTS)}{steps} }}}}")
    return "".join(parts)


def refused(source: str) -> str:
    """The sentence with which a whole template, in its own process, is refused."""
    template = ChatTemplate({"default": source}, {}, "hostile")
    try:
        template.render([{"role": "user", "content": "hi"}])
    except CodedError as exc:
        check_refusal(exc, "E17")
        return str(exc)
    raise AssertionError("it was rendered")
