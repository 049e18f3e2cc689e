"""The page's parameters: those of the server, sent as what they are, and copied into a command."""

import ast
import json
import subprocess

import pytest

from runner.api.openai.bodies import ChatBody, CompletionBody
from runner.api.openai.requests import DEFAULT_COMPLETION_TOKENS
from tests.runner.api.apis import API, data_of
from tests.runner.api.browser import Page
from tests.runner.api.page_steps import OPEN_GROUPS, needs_chromium

pytestmark = [pytest.mark.servers, needs_chromium]


def test_a_slider_and_its_field_say_the_same(page: Page) -> None:
    page.click(".slider input[type=range][aria-label^=temperature]")
    page.press("ArrowRight")
    assert page.run("parameters()") == {"temperature": 1.05}
    page.click("#field-max_tokens")
    page.type("64")
    at = page.run("document.querySelector('[aria-label^=max_tokens]').value")
    assert 45 < float(at) < 55, "64 of 4096 is in the middle"


def test_parameters_are_those_that_the_server_publishes(page: Page, api: API) -> None:
    fields = api.client.get("/openapi.json").json()["components"]["schemas"]["ChatBody"]["properties"]
    ours = set(page.run("[...OURS]"))
    shown = page.run("[...document.querySelectorAll('[data-kind]')].map(e => e.name)")
    assert set(shown) == set(fields) - ours
    assert ours <= set(CompletionBody.__struct_fields__) | set(ChatBody.__struct_fields__)
    assert "logit_bias" not in shown, "the paced engine can't"
    assert page.run("document.querySelectorAll(`[data-group=${OTHERS}] .field`).length") == 0, (
        "name its group"
    )
    assert page.run("$('field-top_p').max") == "1"
    assert page.run("$('field-top_p').placeholder") == "1"
    assert "0 to 1. Default: 1." in page.text("#about-top_p")
    page.click("#mode-text")
    assert page.run("$('field-max_tokens').placeholder") == str(DEFAULT_COMPLETION_TOKENS)
    assert page.run("Boolean($('field-echo')) && !$('field-tools')")


def test_each_kind_of_parameter_is_sent_as_what_it_is(page: Page) -> None:
    page.run(OPEN_GROUPS)
    for name, text in {
        "stop": "a\nb\\n",
        "ignore_eos": "true",
        "chat_template_kwargs": '{"a": [1, null]}',
    }.items():
        page.run(f"$('field-{name}').value = {json.dumps(text)}")
    assert page.run("parameters()") == {
        "stop": ["a", "b\n"],
        "ignore_eos": True,
        "chat_template_kwargs": {"a": [1, None]},
    }
    page.run("$('field-chat_template_kwargs').value = '{'")
    page.type("Earth")
    page.press("Enter")
    assert page.text("#error").startswith("chat_template_kwargs must be JSON")
    assert page.focused() == "field-chat_template_kwargs"


def test_a_copied_command_does_what_the_page_did(page: Page, api: API) -> None:
    page.click("#mode-text")
    page.run(
        "$('field-max_tokens').value = '20', $('field-top_k').value = '5', $('field-echo').value = 'true'"
    )
    prompt = 'It\'s $HOME "quoted" \\ and 新 👋\n'
    page.click("#prompt")
    page.type(prompt)
    page.run("navigator.clipboard.writeText = async text => { window.copied = text; }, 0")
    page.click("#curl")
    page.wait("$('status').textContent === 'Copied as curl.'")
    answer = subprocess.run(["bash", "-c", page.run("copied")], capture_output=True, text=True, check=True)
    *events, last = data_of(answer.stdout)
    text = "".join(json.loads(each)["choices"][0]["text"] for each in events)
    assert (text, last) == (prompt + api.model.expected_text(prompt, 20), "[DONE]")
    page.click("#python")
    page.wait("$('status').textContent === 'Copied as Python.'")
    calls = [each for each in ast.walk(ast.parse(page.run("copied"))) if isinstance(each, ast.Call)]
    (call,) = [each for each in calls if ast.unparse(each.func) == "client.completions.create"]
    arguments = {each.arg: ast.literal_eval(each.value) for each in call.keywords}
    assert arguments == {
        "model": "small",
        "prompt": prompt,
        "max_tokens": 20,
        "extra_body": {"top_k": 5},
        "echo": True,
        "stream": True,
    }
