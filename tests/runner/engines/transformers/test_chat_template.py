"""A chat template gives the same text here as in ``transformers``, for templates that use all they may."""

from typing import Any

import pytest

pytest.importorskip("transformers", reason="runs in the engine environment")

from transformers.utils.chat_template_utils import render_jinja_template

from runner.chat.template import ChatTemplate

pytestmark = pytest.mark.engine_env

CHAT = [
    {"role": "system", "content": "Be brief. "},
    {"role": "user", "content": "Hello <b> é 日本\n"},
    {"role": "assistant", "content": "Yes? "},
]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}

LLAMA = """{{- bos_token }}
{%- set system = '' %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
<<{{ system }}>>
{% for message in messages %}
    {% if loop.index0 > 5 %}{% break %}{% endif %}
    {{- '[' + message.role + ']' + message['content'] | trim + eos_token }}
{% endfor %}
{% if add_generation_prompt %}[assistant]{% endif %}"""
TOOL_USE = """{% if tools %}{{ tools | tojson(indent=2) }}
{% endif %}{% set ns = namespace(count=0) %}
{% for m in messages %}{% set ns.count = ns.count + 1 %}{{ m | tojson }}
{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}{{ ns.count }}{{ strftime_now('%Y') }}"""


@pytest.mark.parametrize("source", [LLAMA, TOOL_USE])
@pytest.mark.parametrize("tools", [None, TOOLS])
@pytest.mark.parametrize("form", ["plain", "generation prompt", "continued"])
def test_the_text_is_that_of_transformers(source: str, tools: list[dict[str, Any]] | None, form: str) -> None:
    ours = ChatTemplate({"default": source}, SPECIAL).render(
        CHAT, tools=tools, continues=form == "continued", adds_generation_prompt=form == "generation prompt"
    )
    (theirs,), _ = render_jinja_template(
        [CHAT],
        tools=tools,
        chat_template=source,
        continue_final_message=form == "continued",
        add_generation_prompt=form == "generation prompt",
        **SPECIAL,
    )
    assert ours == theirs
