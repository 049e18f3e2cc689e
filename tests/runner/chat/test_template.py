"""Chat templates: which is taken, what it is given, and what is told of one that does not work."""

import json
from pathlib import Path
from typing import Any

import pytest

from errors.chat import ChatTemplateRefused
from errors.coded_error import CodedError
from runner.chat import renderer
from runner.chat.messages import with_system_prompt
from runner.chat.template import ChatTemplate, load_chat_template

ASKED = [{"role": "user", "content": "Hello"}]
PLAIN = "{{ bos_token }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"


@pytest.fixture(autouse=True)
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """None is kept ready: no chat waits for another here."""
    monkeypatch.setattr(renderer, "_MOST_SANDBOXES", 1)


def template(source: str, **special_tokens: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, special_tokens)


def code_of(raised: pytest.ExceptionInfo[CodedError]) -> str:
    return raised.value.code


def test_special_tokens_and_messages_are_filled_in(tmp_path: Path) -> None:
    config = {"chat_template": PLAIN, "bos_token": {"content": "<s>"}, "eos_token": "</s>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    assert load_chat_template(tmp_path, None).render(ASKED) == "<s>[user]Hello"


def writing(name: str) -> str:
    return name + "{% for m in messages %}{{ m.content }}{% endfor %}"


def test_a_file_wins_over_the_configuration_and_the_setting_over_both(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": writing("configuration ")}))
    assert load_chat_template(tmp_path, None).render(ASKED) == "configuration Hello"
    (tmp_path / "chat_template.json").write_text(json.dumps({"chat_template": writing("json ")}))
    assert load_chat_template(tmp_path, None).render(ASKED) == "json Hello"
    (tmp_path / "chat_template.jinja").write_text(writing("jinja "))
    assert load_chat_template(tmp_path, None).render(ASKED) == "jinja Hello"
    setting = tmp_path / "mine.jinja"
    setting.write_text(writing("setting "))
    assert load_chat_template(tmp_path, setting).render(ASKED) == "setting Hello"


@pytest.mark.parametrize("place", ["configuration", "object", "json", "folder", "folder beside"])
def test_of_named_templates_the_one_for_tools_is_taken_where_there_are_tools(
    tmp_path: Path, place: str
) -> None:
    sources = {name: writing(f"{name} ") for name in ("default", "tool_use")}
    named: object = [{"name": name, "template": source} for name, source in sources.items()]
    if place == "object":
        named = sources
    if place.startswith("folder"):
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(sources["tool_use"])
        named = sources["default"]
    if place == "folder":
        (tmp_path / "chat_template.jinja").write_text(sources["default"])
    else:
        file = "chat_template.json" if place == "json" else "tokenizer_config.json"
        (tmp_path / file).write_text(json.dumps({"chat_template": named}))
    loaded = load_chat_template(tmp_path, None)
    assert loaded.render(ASKED) == "default Hello"
    assert loaded.render(ASKED, tools=[{"type": "function"}]) == "tool_use Hello"
    setting = tmp_path / "mine.jinja"
    setting.write_text(writing("setting "))
    overridden = load_chat_template(tmp_path, setting)
    assert overridden.render(ASKED, tools=[{"type": "function"}]) == "setting Hello"


def test_no_template_is_an_error_only_when_one_is_asked_for(tmp_path: Path) -> None:
    loaded = load_chat_template(tmp_path, None)
    assert not loaded.exists
    with pytest.raises(CodedError, match="set CHAT_TEMPLATE") as raised:
        loaded.render(ASKED)
    assert code_of(raised) == "E1700"


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{% for %}", "line 1"),
        (5, "neither a text nor a list"),
        ([{"name": "rag", "template": "x"}], "none named default"),
    ],
)
def test_a_template_that_is_none_is_e1701(tmp_path: Path, content: object, says: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": content}))
    with pytest.raises(CodedError, match=says) as raised:
        load_chat_template(tmp_path, None).render(ASKED)
    assert code_of(raised) == "E1701"


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("{{ raise_exception('Roles must alternate!') }}", "Roles must alternate!"),
        ("{{ messages[0].content.upper().nothing() }}", "nothing"),
        ("{{ 1 / 0 }}", "division by zero"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "is unsafe"),
        ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
    ],
)
def test_what_a_template_fails_with_is_e1702(source: str, says: str) -> None:
    with pytest.raises(CodedError, match=says) as raised:
        template(source).render(ASKED)
    assert code_of(raised) == "E1702"


def test_the_last_message_is_continued() -> None:
    chat = [*ASKED, {"role": "assistant", "content": "I am "}]
    source = "{% for m in messages %}[{{ m.role }}]{{ m.content }}[end]{% endfor %}"
    assert template(source).render(chat, continues=True) == "[user]Hello[end][assistant]I am "
    trimming = source.replace("m.content", "m.content.strip()")
    assert template(trimming).render(chat, continues=True) == "[user]Hello[end][assistant]I am"
    with pytest.raises(CodedError) as raised:
        template("nothing of it").render(chat, continues=True)
    assert code_of(raised) == "E1702"


def test_the_template_gets_tools_documents_and_its_own_arguments() -> None:
    variables = "{{ tools | tojson }}{{ documents[0].title }}{{ thinking }}{{ add_generation_prompt }}"
    source = "{{ messages[0].content }}" + variables
    given: dict[str, Any] = {"tools": [{"a": "é<"}], "documents": [{"title": "T"}]}
    text = template(source).render(ASKED, arguments={"thinking": False}, **given)
    assert text == 'Hello[{"a": "é<"}]TFalseTrue'


def test_documents_are_never_left_out() -> None:
    sources = {"default": "{{ messages[0].content }}", "tool_use": "{{ documents | tojson }}Hello"}
    named = ChatTemplate(sources, {})
    given: dict[str, Any] = {"documents": [{"title": "T"}]}
    with pytest.raises(ChatTemplateRefused, match="no place for documents; send them in a message"):
        named.render(ASKED, **given)
    assert named.render(ASKED, documents=[]) == "Hello"
    assert "T" in named.render(ASKED, tools=[{"a": 1}], **given)


def test_ids_of_calls_are_short_where_the_template_requires_it() -> None:
    given = "call_0123456789abcdef"
    call = {"id": given, "type": "function", "function": {"name": "look", "arguments": "{}"}}
    chat = [
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": given, "content": "5"},
    ]
    source = (
        "{% for m in messages %}{% for c in m.tool_calls %}REQUIRED{{ c.id }}="
        "{{ c.function.arguments | tojson }} {% endfor %}{{ m.content }} {{ m.tool_call_id }}{% endfor %}"
    )
    assert template(source.replace("REQUIRED", "")).render(chat).split() == [f"{given}={{}}", "5", given]
    required = "{% if c.id | length != 9 %}{{ raise_exception('short!') }}{% endif %}"
    first, _, second = template(source.replace("REQUIRED", required)).render(chat).split()
    assert first == f"{second}={{}}"


def test_the_servers_system_prompt_is_for_chats_that_bring_none() -> None:
    assert with_system_prompt(ASKED, "") == ASKED
    assert with_system_prompt(ASKED, "Be brief.")[0] == {"role": "system", "content": "Be brief."}
    for role in ("system", "developer"):
        chat = [{"role": role, "content": "Be long."}, *ASKED]
        assert with_system_prompt(chat, "Be brief.") == chat
