"""A hostile chat template's time and memory are bounded by the kernel, and those after it are served."""

import os
import time
from pathlib import Path

import pytest

from errors.coded_error import CodedError
from runner.chat.sandbox import RENDER_S
from runner.chat.template import ChatTemplate
from tests import fast
from tests.fuzz.refusal import check_refusal

ASKED = [{"role": "user", "content": "hi"}]

LOOPS = {
    "nested loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "calls that double": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}"
    "{{ f(200) }}",
    "a power": "{% set n = 9 %}{{ (n ** (n ** n)) is number }}",
    "a power, folded while it is compiled": "{{ 9 ** (9 ** 9) }}",
}
BOMBS = {
    "a text times a number": "{{ 'a' * 10 ** 10 }}",
    "a width": "{{ '%9999999999d' % 1 }}",
    "a width by format": "{{ '{:>9999999999}'.format(1) }}",
    "a centred text": "{{ 'a'|center(10 ** 10) }}",
    "a batch": "{{ [1]|batch(10 ** 10, 'a')|list }}",
    "texts that double": "{% set n = namespace(s='aaaaaaaa') %}"
    "{% for _ in range(99) %}{% set n.s = n.s ~ n.s %}{% endfor %}",
    "lists that double": "{% set n = namespace(s=[1]) %}"
    "{% for _ in range(99) %}{% set n.s = n.s + n.s %}{% endfor %}",
    "an output without end": "{% for a in range(99999) %}"
    "{% for b in range(99999) %}aaaaaaaa{% endfor %}{% endfor %}",
    "lorem ipsum": "{{ lipsum(n=99999999) }}",
}
BROKEN = {
    "deep": "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}",
    "many blocks": "{% for a in messages %}" * 100 + "{% endfor %}" * 100,
    "a long number": "{{ " + "9" * 5000 + " }}",
    "not closed": "{{",
    "our objects": "{{ lipsum.__globals__ }}",
    "unicode": "{{ '\ud800' }}{{ \ud800 }}",
}


@pytest.fixture(autouse=True)
def short_life(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Give it a fifth of a second, which shows that it ends. Python runs ``sitecustomize`` there as well."""
    (tmp_path / "sitecustomize.py").write_text(
        "import signal\n"
        "ours = signal.setitimer\n"
        "signal.setitimer = lambda which, seconds: ours(which, min(seconds, 0.2))\n"
    )
    monkeypatch.setattr("runner.chat.renderer._MOST_SANDBOXES", 1)
    monkeypatch.setattr("engine.machine.root.SOURCE_ROOT", f"{tmp_path}{os.pathsep}{Path.cwd()}")


def refused(source: str) -> str:
    with pytest.raises(CodedError) as raised:
        ChatTemplate({"default": source}, {}, "hostile").render(ASKED)
    check_refusal(raised.value, "E17")
    return str(raised.value)


@pytest.mark.parametrize("source", fast.few([*LOOPS.values(), *BOMBS.values()]), ids=[*LOOPS, *BOMBS])
def test_loops_and_memory_bombs_end_with_a_code(source: str) -> None:
    start_s = time.monotonic()
    assert refused(source).startswith("E170")
    assert time.monotonic() - start_s < 60 * RENDER_S


@pytest.mark.parametrize("source", fast.few(BROKEN.values()), ids=BROKEN)
def test_what_jinja_or_python_chokes_on_ends_with_a_code(source: str) -> None:
    assert refused(source).startswith("E170")


def test_after_a_template_had_to_be_ended_the_next_chat_is_served() -> None:
    loop = (
        "{% if messages[0].content == 'hi' %}"
        + LOOPS["nested loops"]
        + "{% endif %}{{ messages[0].content }}"
    )
    template = ChatTemplate({"default": loop}, {})
    with pytest.raises(Exception, match="E1702"):
        template.render(ASKED)
    assert template.render([{"role": "user", "content": "hello"}]) == "hello"


def test_a_template_finds_no_secret_and_writes_no_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that left the sandbox: here by a filter that is no template's."""
    monkeypatch.setenv("HF_TOKEN", "hf_planted_for_the_template")
    template = ChatTemplate({"default": "{{ messages[0].content }}"}, {})
    template.render(ASKED)
    process = template._renderer._small._idle[0]._process
    environment = Path(f"/proc/{process.pid}/environ").read_bytes()
    assert b"hf_planted" not in environment
    limits = Path(f"/proc/{process.pid}/limits").read_text()
    assert "Max file size             0" in limits
    (memory,) = (line.split()[3] for line in limits.splitlines() if line.startswith("Max address space"))
    assert int(memory) < 2 << 30


def test_the_process_ends_with_its_template() -> None:
    template = ChatTemplate({"default": "x"}, {})
    template.check()
    process = template._renderer._small._idle[0]._process
    assert process is not None
    del template
    process.wait(240)  # The thread that starts another one may hold the template for a moment.
