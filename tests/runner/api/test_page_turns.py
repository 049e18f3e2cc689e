"""The turns of a chat on the page: asked again, edited, copied; reasoning and calls of tools."""

import json
from pathlib import Path

import pytest

from tests.runner.api.alone import APIAlone
from tests.runner.api.apis import API
from tests.runner.api.browser import Browser, Page
from tests.runner.api.page_steps import IS_DONE, IS_READY, answer_with, ask, needs_chromium
from tests.runner.paced_engine import make_paced_model

pytestmark = [pytest.mark.servers, needs_chromium]


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


def test_what_is_asked_again_stays_if_that_fails(page: Page) -> None:
    page.run("$('field-max_tokens').value = '8'")
    ask(page, "Earth")
    before = page.text("#log")
    page.run("$('field-temperature').value = '7'")
    page.click(".assistant .regenerate")
    page.wait("!running && !$('error').hidden")
    assert page.text("#log") == before
    assert page.run("turns.length") == 2


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


def test_chats_survive_a_reload_and_a_switch_of_the_endpoint(page: Page) -> None:
    answer_with(page, {"reasoning_content": "Hm."}, {"content": "Said **so**."}, reason="length")
    ask(page, "Earth")
    shown = "$('log').innerText"
    before = page.run(shown)
    page.click("#mode-text")
    assert page.run("turns.length") == 0
    page.click("#mode-chat")
    assert page.run(shown) == before
    page.run("$('system').value = 'Be brief.'")
    reload(page, 2)
    assert page.run(shown) == before
    assert page.run("$('system').value") == "Be brief."
    for state in ("{}", '{"chat": [{"role": "user"}], "text": 5}'):  # Of another version.
        page.run(f"save = () => {{}}, sessionStorage.setItem(STORED, '{state}'), 0")
        reload(page, 0)
    assert page.run("$('system').value") == ""
    ask(page, "Earth")
    page.click("#clear")
    reload(page, 0)


def reload(page: Page, num_turns: int) -> None:
    page.reload(f"{IS_READY} && turns.length === {num_turns}")


@pytest.mark.parametrize("endpoint", ["chat", "text"])
def test_an_answer_that_was_cut_off_says_so_and_goes_on(page: Page, api: API, endpoint: str) -> None:
    page.click(f"#mode-{endpoint}")
    page.run("$('field-max_tokens').value = '8'")
    ask(page, "Earth")
    first = page.text(".assistant .text")
    assert page.text(".cut span") == "The answer was cut off at the token limit."
    page.run("$('status').textContent = ''")
    page.click(".cut .continue")
    page.wait(IS_DONE)
    assert page.run("turns.length") == 2
    whole = page.text(".assistant .text")
    assert whole.startswith(first)
    assert len(whole) > len(first)
    if endpoint == "text":
        assert whole == api.model.expected_text("Earth", 8) + api.model.expected_text("Earth" + first, 8)
    else:
        assert page.run("latest.messages.at(-1).content") == first
        assert page.run("latest.continue_final_message")


def test_a_models_reasoning_and_calls_are_shown_as_they_are_streamed_and_stay_in_the_chat(
    browser: Browser, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "script.yaml"
    call = '<tool_call>{"name": "weather", "arguments": {"city": "<b>Paris"}}</tool_call>'
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
        page.run("$('log').style.maxHeight = '120px'")
        ask(page, "Weather in Paris?")
        page.wait("$('log').scrollHeight - $('log').scrollTop - $('log').clientHeight < 40")
        assert page.text(".reasoning div") == "A city."
        assert page.run("document.querySelector('.reasoning').open") is False, "once the answer has begun"
        assert page.text(".assistant .text") == "Let me see."
        assert page.text(".call") == 'Calls weather{"city": "<b>Paris"}'
        assert page.text("#status").startswith("Done: the model called a tool")
        ask(page, "And now?")
        said = page.run("latest.messages[1]")
        (call_sent,) = said.pop("tool_calls")
        assert said == {"role": "assistant", "content": "Let me **see**."}
        assert call_sent.pop("id").startswith("call_")
        arguments = '{"city": "<b>Paris"}'
        assert call_sent == {"type": "function", "function": {"name": "weather", "arguments": arguments}}
        page.close()
    finally:
        server.close()


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
    page.wait("!running && $('status').textContent === 'Stopped'")
    assert page.run("turns[1].writer.rest") == "", "all is drawn"
