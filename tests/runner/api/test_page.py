"""The page at /, in a real Chromium: what a person sees of it, by mouse and by keyboard."""

from __future__ import annotations

import ast
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from runner.api.openai.bodies import ChatBody, CompletionBody
from runner.api.openai.requests import DEFAULT_COMPLETION_TOKENS
from tests.runner.api.alone import APIAlone
from tests.runner.api.apis import API
from tests.runner.api.browser import CHROMIUM, Browser, Page
from tests.runner.paced_engine import make_paced_model
from tests.runner.servers import DEADLINE_S

pytestmark = pytest.mark.servers

needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="no Chromium (Debian: apt-get install chromium; CI installs it)"
)
IS_READY = "api && document.querySelector('#parameters input') && $('state').className === 'ready'"
IS_DONE = "!running && $('status').textContent.startsWith('Done')"
HTML = "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script>&amp;"
KEY = "right key"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    browser = Browser(tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()


@pytest.fixture
def page(browser: Browser, api: API) -> Iterator[Page]:
    page = browser.open(api.url + "/")
    # The names of the models come last, and what is below them moves.
    page.wait(f"{IS_READY} && $('model').textContent && document.activeElement.id === 'prompt'")
    yield page
    page.close()


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[API]:
    """With a key, and without a chat template."""
    folder = tmp_path_factory.mktemp("locked")
    api = API(make_paced_model(folder / "model", 200), folder, API_KEYS=KEY)
    yield api
    api.close()


@needs_chromium
def test_a_click_streams_text_and_shows_its_counts(page: Page, api: API) -> None:
    page.click("#field-max_tokens")
    page.type("60")
    page.click("#prompt")
    page.type("Earth")
    page.click("#send")
    page.wait(IS_DONE)
    asked = {"messages": [{"role": "user", "content": "Earth"}], "max_tokens": 60}
    expected = api.ask("/v1/chat/completions", **asked)
    assert page.text(".assistant .text") == expected["choices"][0]["message"]["content"]
    assert page.text(".assistant .tokens") == "60"
    assert page.text(".assistant .prompt-tokens") == str(expected["usage"]["prompt_tokens"])
    assert page.text(".assistant .first").endswith("s")
    assert page.text(".assistant .duration").endswith("s")
    assert float(page.text(".assistant .rate")) > 0
    assert page.complaints() == []


@needs_chromium
def test_a_chat_goes_on_with_what_was_said(page: Page) -> None:
    page.run("$('field-max_tokens').value = '3', $('system').value = 'Be brief.'")
    for text in ("Earth", "Water"):
        page.type(text)
        page.press("Enter")
        page.wait(f"{IS_DONE} && !$('prompt').value")
    roles = [each["role"] for each in page.run("latest.messages")]
    assert roles == ["system", "user", "assistant", "user"]
    page.click("#clear")
    page.type("Fire")
    page.press("Enter")
    page.wait(IS_DONE)
    assert page.run("latest.messages.length") == 2


@needs_chromium
@pytest.mark.parametrize("by", ["button", "Escape", "leaving"])
def test_stopping_frees_the_slot(page: Page, api: API, by: str) -> None:
    before = api.counters.cancelled
    # 15 s: less than Chromium would go on reading after the page was left.
    page.run("$('field-max_tokens').value = '3000'")
    page.type("Earth")
    page.press("Enter")
    page.wait("document.querySelector('.tokens')?.textContent > 3")
    if by == "button":
        page.click("#stop")
    elif by == "Escape":
        page.press("Escape")
    else:
        page.call("Page.navigate", url="about:blank")
    api.counters.wait_for_cancelled(before + 1)
    if by != "leaving":
        page.wait("!running && $('status').textContent === 'Stopped.'")
        assert page.text(".assistant .text")


@needs_chromium
def test_an_error_of_the_server_is_shown_with_its_code_and_its_field(page: Page) -> None:
    page.click("#field-temperature")
    page.type("7")
    page.click("#prompt")
    page.type("Earth")
    page.click("#send")
    page.wait("!running && !$('error').hidden")
    assert page.text("#error").startswith("E1005: temperature must be")
    assert page.run("$('field-temperature').getAttribute('aria-invalid')") == "true"
    assert page.run("$('error').closest('.field').contains($('field-temperature'))"), "where the field is"
    assert page.run("document.body.innerText.match(/E1005/g).length") == 1, "once"
    assert page.focused() == "field-temperature"
    page.wait("$('prompt').value === 'Earth'")  # What was written is not lost.
    assert page.run("turns.length") == 0
    page.run("$('field-temperature').value = '1'")
    page.click("#send")
    page.wait("running && $('error').hidden && !document.querySelector('[aria-invalid]')")


@needs_chromium
def test_an_error_in_a_stream_ends_it_as_one(page: Page, api: API) -> None:
    """The server's answer is put in its place: a real one can't be made to fail at a certain token."""
    event = {"choices": [{"index": 0, "delta": {"content": "Half"}, "finish_reason": None}]}
    for last, shown in (
        ('{"error": {"code": "E2107", "message": "It died."}}', "E2107: It died."),
        ("", "closed before the text was complete"),
    ):
        text = f"data: {json.dumps(event)}\n\n" + (f"data: {last}\n\n" if last else "")
        page.run(f"window.fetch = async () => new Response({json.dumps(text)}), 0")
        page.type("Earth")
        page.press("Enter")
        page.wait("!running && !$('error').hidden")
        assert shown in page.text("#error")
        assert page.text(".turn:last-child .text") == "Half"


def answer_with(page: Page, *deltas: dict[str, Any], reason: str | None = "stop") -> None:
    """The next streams of the page are these, in place of the server's: the paced engine can't say them."""
    choices = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    choices.append({"index": 0, "delta": {}, "finish_reason": reason})
    events = [json.dumps({"choices": [choice]}) for choice in choices] + ["[DONE]"]
    text = "".join(f"data: {event}\n\n" for event in events)
    page.run(f"window.fetch = async () => new Response({json.dumps(text)}), 0")


def ask(page: Page, text: str) -> None:
    page.run("$('status').textContent = '', $('prompt').focus()")
    page.type(text)
    page.press("Enter")
    page.wait(IS_DONE)


@needs_chromium
def test_an_answer_is_asked_again_and_turns_are_edited(page: Page) -> None:
    page.run("$('field-max_tokens').value = '8'")
    for text in ("Earth", "Water"):
        ask(page, text)
    roles = "turns.map(each => each.role[0]).join('')"
    page.run("$('status').textContent = ''")
    page.click(".assistant .regenerate")
    page.wait(f"{IS_DONE} && {roles} === 'ua'")
    assert page.run("latest.messages.map(each => each.content)") == ["Earth"], "what followed is removed"
    page.click(".assistant .edit")
    page.run("$('log').querySelector('.assistant textarea').value = 'Said **so**.'")
    page.click(".assistant .save")
    assert page.run("document.querySelector('.assistant .text strong').textContent") == "so"
    ask(page, "Fire")
    assert page.run("latest.messages.map(each => each.content)") == ["Earth", "Said **so**.", "Fire"]
    page.run("$('status').textContent = ''")
    page.click(".user .edit")
    page.press("Escape")
    assert page.focused() == "prompt"
    page.click(".user .edit")
    page.type(" and Moon")
    page.press("Enter", "Control")
    page.wait(f"{IS_DONE} && {roles} === 'ua'")
    assert page.run("latest.messages.map(each => each.content)") == ["Earth and Moon"]


@needs_chromium
def test_what_is_asked_again_stays_if_that_fails(page: Page) -> None:
    page.run("$('field-max_tokens').value = '8'")
    ask(page, "Earth")
    before = page.text("#log")
    page.run("$('field-temperature').value = '7'")
    page.click(".assistant .regenerate")
    page.wait("!running && !$('error').hidden")
    assert page.text("#log") == before
    assert page.run("turns.length") == 2


@needs_chromium
def test_an_answer_is_copied_as_the_model_wrote_it(page: Page) -> None:
    page.run("navigator.clipboard.writeText = async text => { window.copied = text; }, 0")
    answer_with(page, {"content": "a **b**\n\n```py\nif 1:\n"}, {"content": "\tc\n```\n"})
    ask(page, "Earth")
    page.click(".assistant .actions .copy")
    page.wait("$('status').textContent === 'Copied the answer.'")
    assert page.run("copied") == "a **b**\n\n```py\nif 1:\n\tc\n```\n"
    page.click(".code .copy, .code button")
    page.wait("$('status').textContent === 'Copied the code.'")
    assert page.run("copied") == "if 1:\n\tc\n"


@needs_chromium
def test_each_answer_keeps_its_figures(page: Page) -> None:
    for tokens in (3, 7):
        page.run(f"$('field-max_tokens').value = '{tokens}'")
        ask(page, "Earth")
    assert page.run("[...document.querySelectorAll('.tokens')].map(each => each.textContent)") == ["3", "7"]


@needs_chromium
def test_reasoning_and_tool_calls_are_shown_and_calls_stay_in_the_chat(page: Page) -> None:
    def calls(**function: str) -> dict[str, Any]:
        return {"tool_calls": [{"index": 0, "function": function}]}

    begin = calls(name="weather", arguments="")
    begin["tool_calls"][0] |= {"id": "c1", "type": "function"}
    answer_with(
        page,
        {"reasoning_content": "Paris is "},
        {"reasoning": "a city."},
        {"content": "Let me see."},
        begin,
        calls(arguments='{"city":'),
        calls(arguments=' "<b>Paris"}'),
        reason="tool_calls",
    )
    page.run("$('log').style.maxHeight = '120px'")
    ask(page, "Weather in Paris?")
    page.wait("$('log').scrollHeight - $('log').scrollTop - $('log').clientHeight < 40")
    assert page.text(".reasoning div") == "Paris is a city."
    assert page.run("document.querySelector('.reasoning').open") is False, "once the answer has begun"
    assert page.text(".assistant .text") == "Let me see."
    assert page.text(".call") == 'Calls weather{"city": "<b>Paris"}'
    ask(page, "And now?")
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city": "<b>Paris"}'},
    }
    said = {"role": "assistant", "content": "Let me see.", "tool_calls": [call]}
    assert page.run("latest.messages[1]") == said


@needs_chromium
def test_a_models_reasoning_and_calls_are_shown_as_they_are_streamed(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.yaml"
    call = '<tool_call>{"name": "weather", "arguments": {"city": "Paris"}}</tool_call>'
    script.write_text(json.dumps([{"answer": f"<think>A city.</think>Let me **see**.{call}"}]))
    monkeypatch.setenv("COG_TRITON_SCRIPT", str(script))
    server = APIAlone(make_paced_model(tmp_path / "model", 200), tmp_path, CHAT_FAMILY="hermes")
    try:
        page = browser.open(server.url + "/")
        page.wait(f"{IS_READY} && $('model').textContent")
        page.run("""$('field-tools').value = '[{"type": "function", "function": {"name": "weather"}}]'""")
        assert page.run("[...$('field-tool_choice').options].map(each => each.textContent)") == [
            *("not sent", "auto", "none", "required")
        ]
        ask(page, "Weather in Paris?")
        assert page.text(".reasoning div") == "A city."
        assert page.text(".assistant .text") == "Let me see."
        assert page.text(".call") == 'Calls weather{"city": "Paris"}'
        assert page.text("#status").startswith("Done: the model calls tools")
        ask(page, "And now?")
        assert page.run("latest.messages[1].tool_calls[0].id").startswith("call_")
        page.close()
    finally:
        server.close()


@needs_chromium
def test_an_example_is_asked_by_a_click(page: Page) -> None:
    page.run("$('field-max_tokens').value = '4'")
    example = page.text("#examples button")
    assert len(example) > 10
    assert f"{page.run('location.origin')}/v1" in page.text("#hello")
    page.click("#examples button")
    page.wait(IS_DONE)
    assert page.text(".user .text") == example
    assert page.run("$('hello').hidden")
    page.click("#clear")
    assert not page.run("$('hello').hidden")


@needs_chromium
def test_a_slider_and_its_field_say_the_same(page: Page) -> None:
    page.click(".slider input[type=range][aria-label^=temperature]")
    page.press("ArrowRight")
    assert page.run("parameters()") == {"temperature": 1.05}
    page.click("#field-max_tokens")
    page.type("64")
    at = page.run("document.querySelector('[aria-label^=max_tokens]').value")
    assert 45 < float(at) < 55, "64 of 4096 is in the middle"


@needs_chromium
def test_many_marks_neither_hang_the_page_nor_hold_up_its_stream(page: Page) -> None:
    """While events come, the page answers, and it can be stopped."""
    page.run(
        r"""(() => {
        window.sent = 0;
        const delta = { content: "*a **b\n- " + "`".repeat(90) };
        const event = `data: ${JSON.stringify({ choices: [{ index: 0, delta, finish_reason: null }] })}\n\n`;
        const bytes = new TextEncoder().encode(event.repeat(100));
        window.fetch = async (url, { signal }) => new Response(new ReadableStream({
            async pull(controller) {
                if (signal.aborted) return controller.error(signal.reason);
                window.sent++;
                await new Promise(resolve => setTimeout(resolve, 1));
                controller.enqueue(bytes);
            },
        }));
        return 0;
        })()"""
    )
    page.type("Earth")
    page.press("Enter")
    page.wait("sent > 30 && turns[1].text.length > 300_000")
    page.press("Escape")
    page.wait("!running && $('status').textContent === 'Stopped.'")
    assert page.run("turns[1].writer.rest") == "", "all is drawn"


@needs_chromium
def test_it_is_used_by_keyboard_alone(page: Page) -> None:
    assert page.focused() == "prompt"
    page.type("Earth")
    page.press("Enter", "Shift")
    assert page.run("running") is None
    assert page.run("$('prompt').value") == "Earth\n"
    page.press("Tab")
    assert page.focused() == "send"
    reached = []
    while (focused := page.focused()) != "prompt" or "log" not in reached:
        assert len(reached) < 40, reached
        reached.append(focused)
        page.press("Tab")
    fields = {"field-max_tokens", "field-temperature", "field-top_p"}
    assert {"send", "clear", "curl", "python", "mode-chat", "system", *fields} <= set(reached)
    while page.focused() != "field-max_tokens":
        page.press("Tab")
    page.type("5")
    page.press("Enter", "Control")
    page.wait(IS_DONE)
    assert page.text(".assistant .tokens") == "5"


@needs_chromium
def test_every_control_has_a_name_and_changes_are_told(page: Page) -> None:
    unnamed = page.run(
        "[...document.querySelectorAll('input, select, textarea')]"
        ".filter(e => !e.ariaLabel && !e.labels[0]?.textContent.trim()).map(e => e.id)"
    )
    assert unnamed == []
    assert page.run("$('status').getAttribute('aria-live')") == "polite"
    assert page.run("$('error').getAttribute('role')") == "alert"


@needs_chromium
@pytest.mark.parametrize("width", [320, 375, 768])
def test_a_narrow_screen_has_no_horizontal_scroll(page: Page, width: int) -> None:
    page.resize(width, 640, is_phone=True)
    page.run("$('field-max_tokens').value = '40'")
    page.wait(f"innerWidth === {width}")
    page.run(f"$('prompt').value = {json.dumps('W' * 300)}")
    page.click("#send")
    page.wait(IS_DONE)
    is_within = "document.documentElement.scrollWidth <= innerWidth"
    assert page.run(is_within)
    page.click("#toggle")
    page.run("$('more-box').open = true")
    assert page.run(is_within)
    assert page.run("$('settings').scrollWidth <= $('settings').clientWidth")


@needs_chromium
def test_nothing_is_asked_of_anybody_else_and_the_policy_forbids_it(page: Page, api: API) -> None:
    page.type("Earth")
    page.press("Enter")
    page.wait("document.querySelector('.tokens')?.textContent > 3")
    page.press("Escape")
    page.wait("!running")
    assert {url for url in page.requested() if not url.startswith(("data:", api.url + "/"))} == set()
    other = f"fetch('http://127.0.0.2:{api.port}/health').then(() => 'sent', () => 'refused')"
    assert page.run(other) == "refused"
    assert any("Content Security Policy" in each for each in page.complaints())


@needs_chromium
def test_the_end_of_a_long_text_is_in_sight_unless_somebody_scrolls_up(page: Page) -> None:
    page.run("$('field-max_tokens').value = '2000'")
    page.type("Water + Fire = Steam")
    page.press("Enter")
    at_end = "$('log').scrollHeight - $('log').scrollTop - $('log').clientHeight < 40"
    page.wait(f"$('log').scrollTop > 100 && {at_end}")
    page.run("$('log').scrollTop = 0")
    page.wait("!follows")
    before = page.text(".assistant .tokens")
    page.wait(f"document.querySelector('.tokens').textContent !== '{before}'")
    assert page.run("$('log').scrollTop") == 0


@needs_chromium
def test_html_in_texts_stays_text(page: Page) -> None:
    page.run("$('field-max_tokens').value = '200'")
    page.type(HTML)
    page.press("Enter")
    page.wait(IS_DONE)
    assert page.text(".user .text") == HTML
    assert HTML in page.text(".assistant .text")
    assert page.run("document.title") == "cog-triton"
    assert page.run("document.querySelectorAll('#log img, #log script').length") == 0
    assert page.complaints() == []


@needs_chromium
def test_parameters_are_those_that_the_server_publishes(page: Page, api: API) -> None:
    fields = api.client.get("/openapi.json").json()["components"]["schemas"]["ChatBody"]["properties"]
    ours = set(page.run("[...OURS]"))
    shown = page.run("[...document.querySelectorAll('[data-kind]')].map(e => e.name)")
    assert set(shown) == set(fields) - ours
    assert ours <= set(CompletionBody.__struct_fields__) | set(ChatBody.__struct_fields__)
    assert "logit_bias" not in shown, "the paced engine can't"
    assert page.run("$('field-top_p').max") == "1"
    assert page.run("$('field-top_p').placeholder") == "1"
    assert "0 to 1. Default: 1." in page.text("#about-top_p")
    page.click("#mode-text")
    assert page.run("$('field-max_tokens').placeholder") == str(DEFAULT_COMPLETION_TOKENS)
    assert page.run("Boolean($('field-echo')) && !$('field-tools')")


@needs_chromium
def test_each_kind_of_parameter_is_sent_as_what_it_is(page: Page) -> None:
    page.run("$('more-box').open = true")
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


@needs_chromium
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
    *events, last = [line.removeprefix("data: ") for line in answer.stdout.splitlines() if line]
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


@needs_chromium
def test_a_key_is_asked_for_where_one_is_wanted_and_a_chat_only_where_there_is_one(
    browser: Browser, locked: API
) -> None:
    page = browser.open(locked.url + "/")
    page.wait(IS_READY)
    assert page.run("$('mode-field').hidden") is True
    page.type("Earth")
    page.press("Enter")
    page.wait("!running && !$('error').hidden")
    assert page.text("#key-field #error").startswith("E1604: ")
    page.click("#key")
    page.type(KEY)
    page.press("Tab")
    page.wait("$('model').textContent")
    page.click("#send")
    page.wait(IS_DONE)
    assert page.text(".assistant .text") == locked.model.expected_text("Earth", DEFAULT_COMPLETION_TOKENS)
    assert KEY not in page.run("asCurl(toCopy()) + asPython(toCopy())")
    page.close()


def test_the_page_is_one_file_with_headers_that_keep_it_here(api: API) -> None:
    answer = httpx.get(api.url + "/", timeout=DEADLINE_S)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    assert len(answer.content) < 60_000
    for word in ('<link rel="stylesheet', 'src="', "innerHTML", "@import", "https://"):
        assert word not in answer.text


def test_usage_so_far_is_in_every_event_where_it_is_asked_for(api: API) -> None:
    options = {"continuous_usage_stats": True, "include_usage": True}
    *events, last = api.events("/v1/completions", prompt="Earth", max_tokens=20, stream_options=options)
    counts = [event["usage"]["completion_tokens"] for event in events]
    assert counts == sorted(counts)
    assert (counts[0] > 0, counts[-1]) == (True, 20)
    assert last["usage"] == events[-1]["usage"]
