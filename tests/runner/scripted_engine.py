"""A paced engine with the special tokens and the chat template of a model family, for scripted answers.

    model = make_scripted_model(folder, HERMES)
    script = write_script(folder, {"when": "Paris?", "answer": hermes_call("look_up", city="Paris")})
    server = TritonUnderTest(model, folder, COG_TRITON_SCRIPT=script)

The rule whose ``when`` stands last in the prompt answers; see docs/rehearse.md.
"""

import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.runner.paced_engine import PacedModel, make_paced_model, make_tokenizer


@dataclass(frozen=True)
class Family:
    end_token: str
    chat_template: str
    special: tuple[str, ...] = ()
    added: tuple[str, ...] = ()
    """Tokens of their own that are not special: a text keeps them."""


HERMES = Family(
    "<|im_end|>",
    """\
{%- macro part(role, text) %}{{ '<|im_start|>' + role + '\\n' + text + '<|im_end|>\\n' }}{% endmacro %}
{%- if tools %}
    {%- set shown %}Answer text, or <tool_call> with "name" and "arguments" </tool_call>. <tools>
{% for tool in tools %}{{ tool | tojson }}
{% endfor %}</tools>{% endset %}
    {{- part('system', shown) }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'tool' %}
        {{- part('user', '<tool_response>\\n' + message.content + '\\n</tool_response>') }}
    {%- else %}
        {%- set calls %}{% for call in message.tool_calls or [] %}
<tool_call>
{{ {'name': call.function.name, 'arguments': call.function.arguments} | tojson }}
</tool_call>{% endfor %}{% endset %}
        {{- part(message.role, (message.content or '') + calls) }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}""",
    special=("<|im_start|>", "<|im_end|>"),
    added=("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>"),
)
"""Qwen 2.5 and 3, Hermes: calls are JSON between two tokens, reasoning stands between two others."""


def make_scripted_model(
    folder: Path, family: Family = HERMES, *, tokens_per_second: float = 0, max_seq_len: int = 1 << 20
) -> PacedModel:
    """Make the engine in ``folder``, with room for the prompts of coding agents."""
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens([*family.special])
    tokenizer.add_tokens([*family.added])
    return make_paced_model(
        folder,
        tokens_per_second,
        max_seq_len=max_seq_len,
        tokenizer=tokenizer,
        end_token=family.end_token,
        chat_template=family.chat_template,
    )


def write_script(folder: Path, *rules: Mapping[str, object]) -> str:
    """Return the value of ``COG_TRITON_SCRIPT``."""
    path = folder / "script.yaml"
    path.write_text(json.dumps(rules))
    return str(path)


def hermes_call(name: str, /, **arguments: object) -> str:
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


if __name__ == "__main__":
    make_scripted_model(Path(sys.argv[1]))
