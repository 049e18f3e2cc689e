"""The relay: all arrives once and in order, alone when there is time and together when there is none."""

import queue
import threading
import time
from collections.abc import Iterator

import pytest

from errors.engines import EngineCrashed
from runner.engines.protocol import relay as relay_module
from runner.engines.protocol.relay import End, Relay, Stream

REST = 2

Response = tuple[list[int], End | None]


class Client:
    """Gets the responses of one stream; may be told to wait before it takes one, or to refuse it."""

    def __init__(self, collects_until: frozenset[int] | None = None) -> None:
        self.responses: queue.Queue[Response] = queue.Queue()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.is_asked = threading.Event()
        self.refuses = False
        self.stream = Stream(self._respond, collects_until=collects_until)

    def _respond(self, tokens: list[int], end: End | None) -> None:
        self.is_asked.set()
        assert self.may_go_on.wait(240)
        if self.refuses:
            raise RuntimeError("the client is gone")
        self.responses.put((tokens, end))

    def next_response(self) -> Response:
        return self.responses.get(timeout=300)


@pytest.fixture
def relay() -> Iterator[Relay]:
    relay = Relay(REST)
    yield relay
    relay.close()


def test_an_idle_relay_sends_every_token_alone(relay: Relay) -> None:
    client = Client()
    for token in range(50):
        relay.feed([(client.stream, [token], None)])
        assert client.next_response() == ([token], None)
    relay.feed([(client.stream, [], "length")])
    assert client.next_response() == ([], "length")


def test_what_comes_while_a_response_is_under_way_is_the_next_response(relay: Relay) -> None:
    client = Client()
    client.may_go_on.clear()
    relay.feed([(client.stream, [0], None)])
    assert client.is_asked.wait(240)
    for token in range(1, 100):
        relay.feed([(client.stream, [token], None)])
    relay.feed([(client.stream, [100], "end")])
    client.may_go_on.set()
    assert client.next_response() == ([0], None)
    assert client.next_response() == (list(range(1, 101)), "end")
    assert client.responses.empty()


def test_streams_take_turns_while_the_relay_is_busy(relay: Relay) -> None:
    blocker, clients = Client(), [Client() for _ in range(5)]
    blocker.may_go_on.clear()
    relay.feed([(blocker.stream, [0], None)])
    assert blocker.is_asked.wait(240)
    for token in range(10):
        relay.feed([(client.stream, [100 * index + token], None) for index, client in enumerate(clients)])
    blocker.may_go_on.set()
    for index, client in enumerate(clients):
        assert client.next_response() == ([100 * index + token for token in range(10)], None)


def test_order_is_kept_for_many_streams_fed_from_several_threads(relay: Relay) -> None:
    clients = [Client() for _ in range(20)]

    def feed(mine: list[Client]) -> None:
        for token in range(300):
            relay.feed([(client.stream, [token], None) for client in mine])
        relay.feed([(client.stream, [], "length") for client in mine])

    threads = [threading.Thread(target=feed, args=(clients[start::4],)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(240)
    for client in clients:
        tokens: list[int] = []
        end: End | None = None
        while end is None:
            new, end = client.next_response()
            tokens += new
        assert tokens == list(range(300))
        assert end == "length"


def test_a_stream_ends_exactly_once(relay: Relay) -> None:
    client = Client()
    error = EngineCrashed(engine_kind="paced", reason="x")
    relay.feed([(client.stream, [1, 2], error)])
    assert client.next_response() == ([1, 2], error)
    relay.close()
    assert client.responses.empty()


def test_a_client_that_fails_does_not_stop_the_others(relay: Relay, caplog: pytest.LogCaptureFixture) -> None:
    gone, client = Client(), Client()
    gone.refuses = True
    for token in range(3):
        relay.feed([(gone.stream, [token], None), (client.stream, [token], None)])
        assert client.next_response() == ([token], None)
    assert gone.responses.empty()
    assert "the client is gone" in caplog.text


def test_closing_sends_what_is_pending() -> None:
    relay, client = Relay(REST), Client()
    client.may_go_on.clear()
    relay.feed([(client.stream, [1], None)])
    assert client.is_asked.wait(240)
    relay.feed([(client.stream, [2], "cancelled")])
    closing = threading.Thread(target=relay.close)
    closing.start()
    client.may_go_on.set()
    closing.join(240)
    assert not closing.is_alive()
    assert client.next_response() == ([1], None)
    assert client.next_response() == ([2], "cancelled")


def test_a_stream_that_is_fed_nothing_is_sent_nothing(relay: Relay) -> None:
    client, other = Client(), Client()
    relay.feed([])
    relay.feed([(other.stream, [1], None)])
    assert other.next_response() == ([1], None)
    assert client.responses.empty()


@pytest.mark.parametrize("end", ["length", EngineCrashed(engine_kind="paced", reason="x")])
def test_a_stream_that_collects_has_its_first_tokens_at_once_and_the_others_at_the_end(
    relay: Relay, monkeypatch: pytest.MonkeyPatch, end: End
) -> None:
    monkeypatch.setattr(relay_module, "COLLECTION_S", 3600)
    collecting, other = Client(frozenset()), Client()
    for token in range(50):
        relay.feed([(collecting.stream, [token], None), (other.stream, [token], None)])
        assert other.next_response() == ([token], None)
        if not token:
            assert collecting.next_response() == ([0], None)
    assert collecting.responses.empty()
    relay.feed([(collecting.stream, [50], end)])
    assert collecting.next_response() == (list(range(1, 51)), end)


def test_what_is_collected_is_sent_at_once_with_a_token_at_which_the_client_ends(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relay_module, "COLLECTION_S", 3600)
    client = Client(frozenset({7, 8}))
    relay.feed([(client.stream, [1], None)])
    assert client.next_response() == ([1], None)
    for tokens in ([2], [3, 4], [8, 5]):
        relay.feed([(client.stream, tokens, None)])
    assert client.next_response() == ([2, 3, 4, 8, 5], None)
    relay.feed([(client.stream, [6], None)])
    relay.feed([(client.stream, [], "cancelled")])
    assert client.next_response() == ([6], "cancelled")


def test_tokens_are_not_collected_for_longer_than_the_time(
    relay: Relay, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(frozenset())
    for token in range(50):
        monkeypatch.setattr(relay_module, "COLLECTION_S", 3600 if token % 10 else 0)
        relay.feed([(client.stream, [token], None)])
        if not token % 10:
            assert client.next_response() == ([*range(max(token - 9, 0), token + 1)], None)


def test_a_streams_first_response_waits_for_no_round_and_no_rest() -> None:
    """After a response that took long, the relay rests: what comes then waits, but for a new stream's."""
    happened: queue.Queue[str] = queue.Queue()
    relay = Relay(REST, lambda: happened.put("round"))

    def respond(tokens: list[int], end: End | None) -> None:
        until_s = time.thread_time() + (0.05 if tokens == [0] else 0)
        while time.thread_time() < until_s:
            pass
        happened.put(f"{tokens}")

    old, new = Stream(respond), Stream(respond)
    relay.feed([(old, [0], None)])
    assert happened.get(timeout=300) == "[0]"
    relay.feed([(old, [1], None)])
    relay.feed([(new, [2], None)])
    seen: list[str] = []
    while "[1]" not in seen:
        seen.append(happened.get(timeout=300))
    relay.close()
    assert "round" in seen[seen.index("[2]") :]
