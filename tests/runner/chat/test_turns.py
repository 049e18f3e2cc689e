"""What clients send reaches the model by every kind of template: as it is where the template takes it."""

import itertools

import pytest

from errors.chat import ChatTemplateRefused
from runner.chat.form import Form
from tests.runner.chat.chats import all_chats, call_with, program_of, rendered, shaped

FOUR_ROLES = (
    "{% for m in messages %}{% if m.role in ['system', 'user'] %}[{{ m.role }}]{{ m.content }}"
    "{% elif m.role == 'assistant' %}[assistant]{{ m.content or '' }}{% for c in m.tool_calls or [] %}"
    "<call>{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
    "{% elif m.role == 'tool' %}[result]{{ m.content }}{% endif %}{% endfor %}"
)
ANY_ROLE = "{% for m in messages %}{{ '[' + m['role'] + ']' + m['content'] }}{% endfor %}"
STRICT = (
    "{% set ns = namespace(next='user') %}{% for m in messages %}"
    "{% if m.role == 'system' %}{% if not loop.first %}{{ raise_exception('System first.') }}{% endif %}"
    "{{ '[system]' + m.content }}"
    "{% elif m.role == 'user' or m.role == 'assistant' %}"
    "{% if m.role != ns.next %}{{ raise_exception('Roles alternate.') }}{% endif %}"
    "{% set ns.next = 'user' if m.role == 'assistant' else 'assistant' %}{{ '[' + m.role + ']' + m.content }}"
    "{% for c in m.tool_calls or [] %}<call>{% for k, v in c.function.arguments | items %}"
    "{{ k }}={{ v }}{% endfor %}{% endfor %}"
    "{% elif m.role == 'tool' %}{% set ns.next = 'assistant' %}[result]{{ m.content }}"
    "{% else %}{{ raise_exception('Unknown role.') }}{% endif %}{% endfor %}"
)
NO_SYSTEM = (
    "{% if messages[0].role == 'system' %}{{ raise_exception('No system.') }}{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Roles alternate.') }}{% endif %}[{{ m.role }}]{{ m.content | trim }}{% endfor %}"
)
NULL_BESIDE_CALLS = (
    "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}"
    "{% for c in m.tool_calls %}<call>{{ c.function.name + c.function.arguments }}{% endfor %}"
    "{% elif m.role == 'assistant' %}[assistant]{{ m.content.split('</think>')[-1] }}"
    "{% else %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
)
CALLS_ALONE = (
    "{% for m in messages %}{% if m.tool_calls %}<call>{{ m.tool_calls[0].function.arguments | tojson }}"
    "{% if m.tool_calls | length > 1 %}{{ raise_exception('One call.') }}{% endif %}"
    "{% else %}[{{ m.role }}]{{ m.content }}{% endif %}{% endfor %}"
)
PARTS = (
    "{% if tools | length %}<tools>{% endif %}{% for m in messages %}"
    "[{{ m.role }}]{% for part in m.content %}{% if part.type == 'text' %}{{ part.text }}{% endif %}"
    "{% endfor %}{% endfor %}"
)
NO_EMPTY_ANSWER = (
    "{% for m in messages %}{% if m.role == 'assistant' and not m.content and not m.tool_calls %}"
    "{{ raise_exception('An answer is not empty.') }}{% endif %}[{{ m.role }}]{{ m.content }}"
    "{% for c in m.tool_calls %}<call>{{ c.function.arguments }}{% endfor %}{% endfor %}"
)
NO_REASONING = (
    "{% for m in messages %}{% if m.reasoning_content %}{{ raise_exception('No reasoning.') }}{% endif %}"
    "[{{ m.role }}]{{ m.content }}{{ m.tool_calls }}{% endfor %}"
)
REASONING_ALWAYS = (
    "{% for m in messages %}[{{ m.role }}]"
    "{% if m.role == 'assistant' %}{{ '<think>' + m.reasoning_content + '</think>' }}{% endif %}"
    "{{ m.content }}{{ m.tool_calls }}{% endfor %}"
)
TEMPLATES = {name: source for name, source in globals().items() if name.isupper()}


@pytest.mark.parametrize("name", TEMPLATES)
def test_each_text_is_in_the_prompt_or_the_chat_is_refused(name: str) -> None:
    program = program_of(TEMPLATES[name])
    for (shape, chat, texts), has_tools in itertools.product(all_chats(), (False, True)):
        try:
            prompt = rendered(program, chat, has_tools=has_tools)
        except ChatTemplateRefused:
            pytest.fail(f"{shape} is refused")
        assert [each for each in texts if each not in prompt] == [], shape


DEVELOPER = "{{ '<dev>' if messages[0].role == 'developer' else '' }}" + ANY_ROLE
CALL = '{{"name": "look", "arguments": {{"city": "This was called as number 01."}}}}'
PROMPTS = {
    "several of a role, if it takes them": (FOUR_ROLES, "ssuu", "", "[system]{}[system]{}[user]{}[user]{}"),
    "a late system, if it takes it": (FOUR_ROLES, "uasu", "", "[user]{}[assistant]{}[system]{}[user]{}"),
    "one of each role otherwise": (STRICT, "ssuu", "", "[system]{}\n\n{}[user]{}\n\n{}"),
    "the system first otherwise": (STRICT, "uadu", "", "[system]{2}[user]{0}[assistant]{1}[user]{3}"),
    "a system at the end as the user": (STRICT, "suas", "", "[system]{}[user]{}[assistant]{}[user]{}"),
    "a user after a result": (STRICT, "uctu", "", "[user]{0}[assistant]<call>city={4}[result]{2}\n\n{3}"),
    "the system in the user's turn": (NO_SYSTEM, "ua", "Be brief.", "[user]Be brief.\n\n{}[assistant]{}"),
    "a developer before our system": (FOUR_ROLES, "du", "Be brief.", "[system]{}[user]{}"),
    "a developer as the system": (ANY_ROLE, "du", "", "[system]{}[user]{}"),
    "a developer, if it has the role": (DEVELOPER, "du", "", "<dev>[developer]{}[user]{}"),
    "calls as text": (ANY_ROLE, "uct", "", f"[user]{{0}}[assistant]{CALL}[tool]{{2}}"),
}
"""A template, a chat, the server's system prompt, and the prompt with the chat's texts by their numbers."""


@pytest.mark.parametrize("name", PROMPTS)
def test_a_chat_is_given_in_turns_that_the_template_takes(name: str) -> None:
    source, shape, system_prompt, prompt = PROMPTS[name]
    texts = [f"This was said as number {number:02}." for number in range(4)]
    rendered_prompt = rendered(program_of(source), shaped(shape), system_prompt=system_prompt)
    assert rendered_prompt == prompt.format(*texts, "This was called as number 01.")


def test_a_long_chat_is_arranged_as_its_beginning_is() -> None:
    chat = shaped("s" + "uuctuadua" * 300)
    assert rendered(program_of(STRICT), chat).count("[user]") == 600


def test_each_result_follows_its_call_where_a_turn_has_one_call() -> None:
    chat = shaped("uptt")
    assert rendered(program_of(CALLS_ALONE), [*chat[:2], chat[3], chat[2]]).split("[tool]") == [
        '[user]This was said as number 00.<call>{"city": "This was called as number 01."}',
        'This was said as number 02.<call>{"city": "This was asked as number 01."}',
        "This was said as number 03.",
    ]


@pytest.mark.parametrize(
    ("source", "form"),
    [
        (FOUR_ROLES, Form(takes_any_arguments=True)),
        (ANY_ROLE, Form(missing_content="")),
        (NULL_BESIDE_CALLS, Form(missing_content=None, has_text_arguments=True, takes_any_arguments=True)),
        (STRICT, Form(missing_content="")),
    ],
)
def test_the_form_of_a_template_is_found_by_rendering(source: str, form: Form) -> None:
    assert program_of(source)._form == form


def test_arguments_that_are_no_object_are_one_where_the_template_needs_it() -> None:
    chat = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "tool_calls": [call_with('{"city": "P')]},
    ]
    assert rendered(program_of(STRICT), chat).endswith('<call>arguments={"city": "P')
    assert rendered(program_of(NULL_BESIDE_CALLS), chat).endswith('<call>look{"city": "P')
    chat[1]["tool_calls"] = [call_with('{"city":"Paris"}')]
    assert rendered(program_of(NULL_BESIDE_CALLS), chat).endswith('<call>look{"city": "Paris"}')


def test_what_is_refused_has_the_templates_own_words() -> None:
    single = "{% if messages | length > 1 %}{{ raise_exception('One message.') }}{% endif %}" + ANY_ROLE
    with pytest.raises(Exception, match="One message"):
        rendered(program_of(single), shaped("ua"))
    with pytest.raises(ChatTemplateRefused, match="leaves out message 1 of 2, of the role user"):
        rendered(program_of("{{ messages[-1].content }}"), shaped("ua"))


def test_nothing_but_its_shape_decides_how_a_chat_is_given() -> None:
    """A client's variables don't change what others get."""
    program = program_of("{% if x %}{{ raise_exception('No.') }}{% endif %}" + FOUR_ROLES)
    with pytest.raises(Exception, match="No"):
        rendered(program, shaped("ssuu"), x=True)
    assert rendered(program, shaped("ssuu")).count("[") == 4
