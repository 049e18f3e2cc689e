"""Events come out of a stream the same, whatever pieces it arrives in."""

import pytest

from runner.http.event_stream import EventParser, ServerEvent

STREAM = (
    b'data: 1\n\nevent: output\ndata: {"chunk": "a"}\n\n: comment\n\ndata:2\r\ndata: 3\r\n\r\n\n\ndata: re'
)
EVENTS = [
    ServerEvent("", b"1"),
    ServerEvent("output", b'{"chunk": "a"}'),
    ServerEvent("", b"2\n3"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 7, len(STREAM)])
def test_events_are_the_same_however_the_stream_is_cut(size: int) -> None:
    parser = EventParser()
    found = []
    for start in range(0, len(STREAM), size):
        found += parser.feed(STREAM[start : start + size])
    assert found == EVENTS
    assert parser.rest == b"data: re"
