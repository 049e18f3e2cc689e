"""Events of an answer: comments, which keep a connection open, are none."""

from __future__ import annotations

from perf.load.response import Response, events


def test_comments_and_events_without_data_are_left_out() -> None:
    body = b": ping\n\ndata: 1\n\nevent: x\n\n: a\ndata: 2\n\n:\n\nevent: y\ndata: 3\n\ndata: cut"
    response = Response(200, {}, [(0.5, body[:20]), (1.5, body[20:])])
    assert [(each.name, each.data) for each in events(response)] == [("", b"1"), ("", b"2"), ("y", b"3")]
