"""A request from Submit to its one end: in the engine server's own process and in a child."""

import time
from collections.abc import Iterator

import pytest

from errors.coded_error import CodedError
from errors.engines import EngineCrashed
from errors.requests import PromptTooLong
from runner.engines.protocol.messages import COLLECTION_S, Failed, Submit, TokenLogProb, Tokens
from runner.engines.server.requests import relay_rest
from tests.runner.engines.engine_server import EngineServerUnderTest
from tests.runner.engines.listening import Listening
from tests.runner.engines.server import brittle
from tests.runner.engines.server.conftest import SharedServer

pytestmark = pytest.mark.servers


@pytest.fixture(params=["brittle", "brittle_child"])
def server(request: pytest.FixtureRequest, shared_server: SharedServer) -> EngineServerUnderTest:
    return shared_server(request.param)


@pytest.fixture
def client(server: EngineServerUnderTest) -> Iterator[Listening]:
    with Listening(server) as client:
        yield client


@pytest.fixture(params=["paced", "paced_child"])
def paced(request: pytest.FixtureRequest, shared_server: SharedServer) -> Iterator[Listening]:
    with Listening(shared_server(request.param)) as client:
        yield client


def error_of(client: Listening, request_id: int) -> CodedError:
    client.wait_for_end(request_id)
    (failed,) = (
        each for each in client.messages if isinstance(each, Failed) and each.request_id == request_id
    )
    return failed.error.restore()


def test_a_request_whose_tokens_are_collected_gets_all_of_them(paced: Listening) -> None:
    collected = Submit(1, [5, 6], 300, collects_until=[], wants_log_probs=True, num_top_log_probs=1)
    start_s = time.monotonic()
    paced.send(collected, Submit(2, [7], 300))
    paced.wait_for_end(1)
    most_messages = 2 + (time.monotonic() - start_s) / COLLECTION_S  # The first and the last are at once.
    paced.wait_for_end(2)
    assert paced.tokens(1) == [5, 6] * 150
    assert [each.top for each in paced.log_probs(1)] == [[(5, 0.0)], [(6, 0.0)]] * 150
    assert paced.tokens(2) == [7] * 300
    messages = [message.new for message in paced.messages if isinstance(message, Tokens)]
    assert sum(number == 1 for new in messages for number, _ in new) <= most_messages


def test_a_cancelled_request_ends_once_however_often_it_is_cancelled(paced: Listening) -> None:
    paced.send(Submit(1, input_ids=[5], max_tokens=90_000))
    paced.wait_for_tokens(1)
    for _ in range(3):
        paced.cancel(1)
    paced.wait_for_end(1)
    paced.answer(Submit(2, input_ids=[6], max_tokens=5))
    paced.cancel(2)
    paced.answer(Submit(3, input_ids=[6], max_tokens=5))
    assert paced.ends(1) == ["cancelled"]
    assert paced.ends(2) == paced.ends(3) == ["length"]
    paced.cancel(4)
    assert paced.answer(Submit(4, input_ids=[5], max_tokens=4)) == ([5] * 4, "length")


def test_a_request_cancelled_at_once_ends_once(paced: Listening) -> None:
    for number in range(1, 200):
        paced.send(Submit(number, input_ids=[5], max_tokens=2))
        paced.cancel(number)
    for number in range(1, 200):
        paced.wait_for_end(number)
    assert all(len(paced.ends(number)) == 1 for number in range(1, 200))


def test_an_id_used_again_cancels_the_request_that_has_it(paced: Listening) -> None:
    paced.send(Submit(1, input_ids=[5], max_tokens=90_000))
    paced.wait_for_tokens(1)
    paced.send(Submit(1, input_ids=[6], max_tokens=3))
    paced.wait_for(lambda: len(paced.ends(1)) == 2)
    assert sorted(paced.ends(1)) == ["cancelled", "length"]
    paced.wait_for(lambda: paced.statistics() and paced.statistics()[-1].active == 0)


def test_the_engine_servers_times_come_when_asked_for(paced: Listening) -> None:
    paced.answer(Submit(1, input_ids=[5], max_tokens=20))
    paced.answer(Submit(2, input_ids=[5], max_tokens=20, returns_times=True))
    assert paced.finished(1).times_s is None
    arrival_s, last_token_s = paced.finished(2).times_s or (0.0, 0.0)
    assert last_token_s - arrival_s >= 0.02


def test_an_error_keeps_its_code_or_becomes_e2109_and_touches_no_other_request(client: Listening) -> None:
    faults = (brittle.FAIL, brittle.FAIL_CODED, 100, brittle.ANSWER)
    client.send(*(Submit(number, [fault], 1) for number, fault in enumerate(faults)))
    uncoded, coded, refused = (error_of(client, number) for number in range(3))
    assert (uncoded.code, uncoded.facts["reason"]) == ("E2109", "ValueError: no such luck")
    assert str(coded) == str(PromptTooLong(prompt_tokens=3, max_input_tokens=2))
    assert coded.facts == {"prompt_tokens": 3, "max_input_tokens": 2, "excess_tokens": 1}
    assert "input_ids must be token ids from 0 to 99" in str(refused)
    assert (client.wait_for_end(3), client.tokens(3)) == ("end", [7])


@pytest.mark.parametrize(
    ("fault", "counts"),
    [
        (brittle.FEW_LOG_PROBS, "1 log probabilities for 2 tokens"),
        (brittle.NO_LOG_PROBS, "0 log probabilities for 1 tokens"),
    ],
)
def test_an_engine_that_sends_too_few_log_probabilities_fails_the_request(
    client: Listening, fault: int, counts: str
) -> None:
    client.send(Submit(1, [fault], 2, wants_log_probs=True), Submit(2, [brittle.ANSWER], 1))
    error = error_of(client, 1)
    assert error.code == "E2109"
    assert counts in error.sentence
    assert client.tokens(1) == []
    assert client.wait_for_end(2) == "end"
    assert len(client.ends(1)) == 1
    num_before = len(client.statistics()) + 1
    client.wait_for(lambda: len(client.statistics()) > num_before and client.statistics()[-1].active == 0)


def test_minus_infinity_is_a_number_that_json_has(client: Listening) -> None:
    client.answer(Submit(1, [brittle.INFINITE_LOG_PROBS], 2, wants_log_probs=True, num_top_log_probs=2))
    assert client.log_probs(1) == [
        TokenLogProb(-0.5, [(8, -0.5)]),
        TokenLogProb(-9999.0, [(7, -9999.0), (8, -0.5)]),
    ]


def test_each_token_has_its_log_probability_beside_others_that_have_none(paced: Listening) -> None:
    paced.send(Submit(1, [5, 6], 30, wants_log_probs=True), Submit(2, [7], 30))
    paced.wait_for_end(1)
    paced.wait_for_end(2)
    assert [each.top for each in paced.log_probs(1)] == [[]] * 30
    assert paced.log_probs(2) == []


def test_a_beam_searchs_sequences_come_with_its_end(client: Listening) -> None:
    assert client.answer(Submit(1, [brittle.BEAMS], 2)) == ([], "length")
    assert client.finished(1).sequences == [[1, 2], [3]]
    assert not [each for each in client.messages if isinstance(each, Tokens)]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (brittle.BREAK, "MemoryError: out of memory"),
        (brittle.DIE, "killed by SIGKILL"),
        (brittle.NO_STATISTICS, "RuntimeError: no statistics"),
    ],
)
@pytest.mark.parametrize("kind", ["brittle", "brittle_child"])
def test_a_broken_engine_ends_every_request_of_every_client_with_its_error(
    shared_server: SharedServer, kind: str, fault: int, reason: str
) -> None:
    if (kind, fault) == ("brittle", brittle.DIE):
        pytest.skip("the engine server is the engine's process: only its parent can say how it ended")
    server = shared_server(kind)
    with Listening(server) as one, Listening(server) as other:
        other.send(Submit(1, [brittle.HOLD], 1), Submit(2, [brittle.HOLD], 1))
        other.wait_for(lambda: any(each.active == 2 for each in other.statistics()))
        one.send(Submit(1, [fault], 1))
        errors = [error_of(client, number) for client, number in ((one, 1), (other, 1), (other, 2))]
        one.wait_for_close()
        other.wait_for_close()
        assert one.tokens(1) == ([7] if fault == brittle.BREAK else [])
    assert server.exit_code() == 70
    left = server.exit_reason.read()
    assert isinstance(left, EngineCrashed)
    assert reason in str(left)
    assert {str(error) for error in errors} == {str(left)}


def test_the_relay_rests_less_with_more_processors() -> None:
    assert [relay_rest(count) for count in (1, 2, 4, 16, 64)] == [30, 30, 10, 2, 2]
