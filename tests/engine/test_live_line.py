"""A live line on a terminal; elsewhere plain lines without control characters."""

import io

import pytest

from engine.live_line import RED, LiveLine, elapsed, painted


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_on_a_terminal_the_line_is_redrawn_and_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine.live_line._REDRAW_S", 0.001)
    monkeypatch.setenv("TERM", "xterm")
    stream = Terminal()
    with LiveLine(stream) as line:
        line.show("loading " + "x" * 500)
        while "loading" not in stream.getvalue():
            pass
    drawn = stream.getvalue().split("\r\033[K")
    assert drawn[-1] == ""
    assert "\n" not in stream.getvalue()
    assert all(len(each) < 500 for each in drawn)


@pytest.mark.parametrize("every_s", [0.0, 1000.0])
def test_elsewhere_a_plain_line_comes_at_times(
    every_s: float, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("engine.live_line._REDRAW_S", 0.001)
    monkeypatch.setattr("engine.live_line._PLAIN_EVERY_S", every_s)
    stream = io.StringIO()
    with LiveLine(stream) as line:
        line.show("loading")
        line.say("a line that stays")
        while not every_s and not stream.getvalue():
            pass
    assert capsys.readouterr().out == "a line that stays\n"
    assert stream.getvalue().startswith("" if every_s else "loading  0 s\n")
    assert "\033" not in stream.getvalue()
    assert "\r" not in stream.getvalue()


def test_times_are_told_in_seconds_and_minutes() -> None:
    assert [elapsed(seconds) for seconds in (0.4, 59.9, 61)] == ["0 s", "59 s", "1 min 1 s"]


def test_colour_is_for_terminals_that_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert painted("text", RED, Terminal()) == "\033[31mtext\033[0m"
    assert painted("text", RED, io.StringIO()) == "text"
    monkeypatch.setenv("NO_COLOR", "1")
    assert painted("text", RED, Terminal()) == "text"
