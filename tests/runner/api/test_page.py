"""The page at /, in a real Chromium: what a person sees of it, by mouse and by keyboard."""

import json
from pathlib import Path

import pytest

from runner.api.openai.requests import DEFAULT_COMPLETION_TOKENS
from tests.runner.api.apis import API
from tests.runner.api.browser import Browser, Page
from tests.runner.api.page_steps import IS_DONE, IS_READY, OPEN_GROUPS, answer_by, ask, needs_chromium
from tests.runner.paced_engine import make_paced_model

pytestmark = [pytest.mark.servers, needs_chromium]
HTML = "<img src=x onerror=\"document.title='hit'\"><script>document.title='hit'</script>&amp;"
KEY = "right key"


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


def test_a_chat_goes_on_with_what_was_said(page: Page) -> None:
    page.run("$('system').value = 'Be brief.'")
    for text, tokens in (("Earth", 3), ("Water", 7)):
        page.run(f"$('field-max_tokens').value = '{tokens}'")
        ask(page, text)
    assert page.run("[...document.querySelectorAll('.tokens')].map(each => each.textContent)") == ["3", "7"]
    roles = [each["role"] for each in page.run("latest.messages")]
    assert roles == ["system", "user", "assistant", "user"]
    page.click("#clear")
    ask(page, "Fire")
    assert page.run("latest.messages.length") == 2


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
        page.wait("!running && $('status').textContent === 'Stopped'")
        assert page.text(".assistant .text")


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


def test_an_error_in_a_stream_ends_it_as_one(page: Page, api: API) -> None:
    """The server's answer is put in its place: a real one can't be made to fail at a certain token."""
    half = {"choices": [{"index": 0, "delta": {"content": "Half"}, "finish_reason": None}]}
    error = {"error": {"code": "E2107", "message": "It died."}}
    for events, shown in (
        ([half, error], "E2107: It died."),
        ([half], "closed before the answer was complete"),
    ):
        answer_by(page, *map(json.dumps, events))
        page.type("Earth")
        page.press("Enter")
        page.wait("!running && !$('error').hidden")
        assert shown in page.text("#error")
        assert page.text(".turn:last-child .text") == "Half"


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


def test_every_control_has_a_name_and_changes_are_told(page: Page) -> None:
    unnamed = page.run(
        "[...document.querySelectorAll('input, select, textarea')]"
        ".filter(e => !e.ariaLabel && !e.labels[0]?.textContent.trim()).map(e => e.id)"
    )
    assert unnamed == []
    assert page.run("$('status').getAttribute('aria-live')") == "polite"
    assert page.run("$('error').getAttribute('role')") == "alert"


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
    page.run(OPEN_GROUPS)
    assert page.run(is_within)
    assert page.run("$('settings').scrollWidth <= $('settings').clientWidth")


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


def test_html_in_texts_stays_text(page: Page) -> None:
    page.run("$('field-max_tokens').value = '200'")
    ask(page, HTML)
    assert page.text(".user .text") == HTML
    assert HTML in page.text(".assistant .text")
    assert page.run("document.title") == "cog-triton"
    assert page.run("document.querySelectorAll('#log img, #log script').length") == 0
    assert page.complaints() == []


def test_a_key_is_asked_for_where_one_is_wanted_and_a_chat_only_where_there_is_one(
    browser: Browser, tmp_path: Path
) -> None:
    """Without a chat template there is no chat."""
    locked = API(make_paced_model(tmp_path / "model", 200), tmp_path, API_KEYS=KEY)
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
    locked.close()


def test_the_banner_and_the_state_follow_the_server(page: Page) -> None:
    """The network is taken away in the page: the server of this module has to stay."""
    page.run(
        "window.network = fetch, window.fetch = async () => { throw new TypeError('gone'); }, checkReady(), 0"
    )
    page.wait("!$('banner').hidden && $('state').className === 'unreachable'")
    page.run("window.fetch = async () => new Response('{}', { status: 503 }), checkReady(), 0")
    page.wait("$('banner').textContent.includes('starting') && $('state').textContent === 'starting'")
    page.run("window.fetch = network, 0")
    page.wait("$('banner').hidden && $('state').className === 'ready'")


def test_a_clock_runs_while_an_answer_is_awaited(page: Page) -> None:
    page.run("window.fetch = () => new Promise(() => {}), 0")
    page.type("Earth")
    page.press("Enter")
    seen = page.wait("$('clock').textContent")
    page.wait(f"$('clock').textContent !== {json.dumps(seen)}")
    assert page.text("#status") == "Waiting for the first token"
