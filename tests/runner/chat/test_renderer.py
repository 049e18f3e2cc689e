"""One client's slow or large chats don't make others wait, and end."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest

from errors.chat import ChatTemplateRefused
from errors.coded_error import CodedError
from errors.requests import PromptTooLong
from runner.chat.template import ChatTemplate
from tests import fast
from tests.runner.servers import wait_until

SLOW = (
    "{% for m in messages %}{% if m.content[:4] == 'slow' %}"
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    "{% endif %}{{ m.content }}{% endfor %}"
)
GENEROUS_S = 300


def chat(content: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": content}]


@contextmanager
def slow_chats(template: ChatTemplate, count: int, content: str = "slow") -> Iterator[list[CodedError]]:
    """``count`` of them at a time, one after the other, until the block ends."""
    errors: list[CodedError] = []
    is_over = threading.Event()

    def render() -> None:
        while not is_over.is_set():
            try:
                template.render(chat(content))
            except CodedError as exc:
                if not is_over.is_set():  # Processes may be killed as they start then.
                    errors.append(exc)

    with ThreadPoolExecutor(count) as pool:
        slow = [pool.submit(render) for _ in range(count)]
        try:
            yield errors
        finally:
            is_over.set()
            while not all(each.done() for each in slow):
                renderer = template._renderer
                for sandbox in [*renderer._small._busy, *renderer._large._busy]:
                    sandbox.kill("the test is over")
                time.sleep(0.01)


def test_a_slow_chat_does_not_make_another_wait() -> None:
    """While it runs, others are rendered by the process that is kept ready."""
    template = ChatTemplate({"default": SLOW}, {})
    template.render(chat("quick"))
    wait_until(lambda: len(template._renderer._small._idle) == 2)
    with slow_chats(template, 1) as errors:
        for number in range(50):
            assert template.render(chat(str(number))) == str(number)
        assert len(errors) <= 1


@pytest.mark.slow
def test_slow_chats_in_all_processes_are_ended_for_others() -> None:
    template = ChatTemplate({"default": SLOW}, {})
    deadline_s = time.monotonic() + GENEROUS_S
    with slow_chats(template, 4) as errors:
        while not any("while others waited" in str(each) for each in errors):
            assert template.render(chat("quick")) == "quick"
            assert time.monotonic() < deadline_s
    assert all(isinstance(each, ChatTemplateRefused) for each in errors)


def test_a_process_that_is_ended_as_its_chat_is_done_costs_no_other_chat() -> None:
    """The killed process may still seem to run when the next chat takes it."""
    template = ChatTemplate({"default": SLOW}, {})
    for number in range(5):
        assert template.render(chat(str(number))) == str(number)
        for sandbox in template._renderer._small._idle:
            sandbox.kill("it took too long while others waited")


@pytest.mark.slow
def test_large_chats_leave_processes_to_others() -> None:
    """However many there are, and however slow."""
    template = ChatTemplate({"default": SLOW}, {})
    template.render(chat("quick"))
    quick = template._renderer._small
    processes = {*quick._idle, *quick._busy}
    deadline_s = time.monotonic() + GENEROUS_S
    with slow_chats(template, 6, "slow" + "x" * 100_000) as errors:
        while not any("while others waited" in str(each) for each in errors):
            assert template.render(chat("quick")) == "quick"
            assert processes <= {*quick._idle, *quick._busy}
            assert time.monotonic() < deadline_s
    assert all(isinstance(each, ChatTemplateRefused) for each in errors)


def test_many_chats_at_once_are_all_rendered() -> None:
    template = ChatTemplate({"default": SLOW}, {})
    with ThreadPoolExecutor(32) as pool:
        texts = [str(number) for number in range(300)]
        assert list(pool.map(lambda text: template.render(chat(text)), texts)) == texts


def test_a_prompt_that_would_be_too_long_is_refused() -> None:
    template = ChatTemplate({"default": "{{ messages[0].content * 100 }}"}, {}, _max_bytes=1000)
    assert template.render(chat("a" * 10)) == "a" * 1000
    with pytest.raises(PromptTooLong, match=r"E1002.*1100 bytes"):
        template.render(chat("a" * 11))
    with pytest.raises(PromptTooLong, match=r"E1002.*1001 bytes"):
        template.render("[" * 1001)


def test_what_a_chat_is_made_from_is_limited_too() -> None:
    """Check it with a template that does not use it."""
    source = "{{ messages[0].content[:9] }}"
    template = ChatTemplate({"default": source}, {}, _max_bytes=1000)
    assert template.render(chat("é" * 300)) == "é" * 9
    large = "é" * 600
    call = {"type": "function", "function": {"name": "f", "arguments": f'["{large}"]'}}
    for messages, more in (
        (chat(large), {}),
        ([{"role": "assistant", "tool_calls": [call]}], {}),
        ([{"role": "user", "content": "a", "other": large}], {}),
        (chat("a"), {"tools": [{large: 1}]}),
        (chat("a"), {"documents": [{"text": large}]}),
        (chat("a"), {"arguments": {"a": [large]}}),
        (json.dumps(chat("a" * 1000)), {}),
    ):
        with pytest.raises(PromptTooLong, match=r"E1002.*MAX_PROMPT_BYTES"):
            template.render(messages, **more)


@pytest.mark.parametrize(
    "messages",
    fast.few(["[" * 100_000, "[" + "{}," * 300_000 + "{}]", "[" + '{"role": "a", "content": ""},' * 100_000]),
)
def test_hostile_json_is_read_in_the_sandbox(messages: str) -> None:
    template = ChatTemplate({"default": "{{ messages | length }}{{ messages[0].content }}"}, {})
    with pytest.raises(CodedError, match=r"E1005|E1702"):
        template.render(messages)
    assert template.render(chat("hi")) == "1hi"
