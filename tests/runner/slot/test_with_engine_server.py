"""The slot with a real engine server, in a stand-in of Triton's Python backend."""

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runner.engines.protocol.messages import Statistics
from runner.engines.protocol.triton_front import CALL, ONLY_FRONT, STOPPED_CALL
from runner.observability import metrics
from tests.runner.engines.engine_server import EngineServerUnderTest
from tests.runner.engines.listening import make_paced_directory
from tests.runner.servers import wait_until
from tests.runner.slot.triton_standin import SlotUnderTest, TritonError

pytestmark = pytest.mark.servers

PROMPT = [10, 11, 12]
LONG: dict[str, Any] = {"input_ids": PROMPT, "request_output_len": 90_000, "streaming": True}


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineServerUnderTest]:
    folder = tmp_path_factory.mktemp("engine")
    server = EngineServerUnderTest("paced", make_paced_directory(folder / "paced", 1000), {}, folder)
    yield server
    server.stop()


@pytest.fixture(scope="module")
def slot(engine: EngineServerUnderTest) -> Iterator[SlotUnderTest]:
    slot = SlotUnderTest(engine.path)
    yield slot
    slot.close()


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[EngineServerUnderTest]:
    """Provide an engine server of one test, which has not started yet."""
    engine_dir = make_paced_directory(tmp_path / "paced", 1000)
    faults = {"COG_TRITON_FAULTS": "requests"}
    server = EngineServerUnderTest("paced", engine_dir, {}, tmp_path, starts=False, environment=faults)
    yield server
    server.stop()


def counts(engine: EngineServerUnderTest) -> tuple[int, float]:
    """Return the engine's own numbers of requests that run, and that were cancelled so far."""
    client = engine.connect()
    while not isinstance(message := client.receive(), Statistics):
        pass
    client.close()
    (cancelled,) = metrics.samples(metrics.CANCELLED, message.counts)
    return message.active, cancelled.value


def num_active(engine: EngineServerUnderTest) -> int:
    return counts(engine)[0]


def expected(prompt: list[int], count: int) -> list[int]:
    return [prompt[index % len(prompt)] for index in range(count)]


@pytest.mark.parametrize("streaming", [False, True])
def test_streams_at_the_same_time_get_their_own_tokens_in_order(slot: SlotUnderTest, streaming: bool) -> None:
    clients = [
        slot.ask(input_ids=[number, 500 + number, 7], request_output_len=40, streaming=streaming)
        for number in range(100)
    ]
    for number, client in enumerate(clients):
        assert client.tokens() == expected([number, 500 + number, 7], 40)


def test_after_a_response_that_could_not_be_sent_a_stream_has_no_more_text_and_ends_with_an_error(
    slot: SlotUnderTest, engine: EngineServerUnderTest
) -> None:
    before = counts(engine)[1]
    client = slot.ask(refuses=True, **LONG)
    with pytest.raises(TritonError, match="E2105"):
        client.receive_all()
    assert client.num_received == 1
    wait_until(lambda: counts(engine) == (0, before + 1))


def test_a_response_that_is_not_streamed_may_begin_with_the_input(slot: SlotUnderTest) -> None:
    client = slot.ask(input_ids=PROMPT, request_output_len=2, exclude_input_in_output=False)
    (outputs,) = client.receive_all()
    assert outputs["output_ids"] == [[[*PROMPT, 10, 11]]]


def test_log_probabilities_come_with_their_tokens(slot: SlotUnderTest) -> None:
    client = slot.ask(
        input_ids=PROMPT, request_output_len=30, streaming=True, return_log_probs=True, num_top_log_probs=2
    )
    tokens: list[int] = []
    for each in client.receive_all():
        new = each["output_ids"][0][0]
        tokens += new
        assert each["output_log_probs"] == [[[0.0] * len(new)]]
        assert each["cum_log_probs"] == [[0.0]]
        # The paced engine knows one token for each place.
        assert each["top_log_prob_ids"] == [[[token, -1] for token in new]]
        assert each["top_log_probs"] == [[[0.0, -9999.0]] * len(new)]
    assert tokens == expected(PROMPT, 30)


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"input_ids": [1000]}, "E1103"),
        ({"beam_width": 4}, "E1104"),
        ({"stop": True}, "E1103"),
        ({"input_ids": np.array([[1.5]]), "stop": np.zeros((1, 0), np.bool_)}, "E1103"),
        ({"input_ids": np.array([PROMPT, PROMPT]), "request_output_len": np.array([[5], [0]])}, "E1103"),
    ],
    ids=["a token", "unsupported", "no id to stop", "unreadable", "one row of two"],
)
def test_a_wrong_request_is_rejected_with_one_response(
    slot: SlotUnderTest, wrong: dict[str, Any], code: str
) -> None:
    response, is_last = slot.ask(**{"input_ids": PROMPT, "request_output_len": 3, **wrong}).receive()
    assert is_last
    assert str(response.error).startswith(code)


def test_a_cancelled_request_is_freed_and_its_last_response_says_so(
    slot: SlotUnderTest, engine: EngineServerUnderTest
) -> None:
    """Without an error: Triton would never free an ensemble's request."""
    clients = [slot.ask(parameters={CALL: "front:1"}, **LONG) for _ in range(20)]
    for client in clients:
        client.receive()
    kept = slot.ask(parameters={CALL: "front:11"}, **LONG | {"request_output_len": 300})
    slot.ask(parameters={STOPPED_CALL: "front:1"}).receive_all()
    late = slot.ask(parameters={CALL: "front:1"}, **LONG)
    with pytest.raises(TritonError) as raised:
        late.receive_all()
    assert raised.value.code == TritonError.CANCELLED
    for client in clients:
        assert client.receive_all()[-1]["finish_reason"] == [[b"cancelled"]]
        assert not client.has_more
    assert kept.tokens() == expected(PROMPT, 300)
    wait_until(lambda: num_active(engine) == 0)


def test_the_requests_of_a_front_that_has_ended_are_cancelled(slot: SlotUnderTest) -> None:
    old = slot.ask(parameters={CALL: "old:1"}, **LONG)
    new = slot.ask(parameters={CALL: "new:1"}, **LONG | {"request_output_len": 300})
    without = slot.ask(**LONG | {"request_output_len": 300})
    slot.ask(parameters={ONLY_FRONT: "new"}).receive_all()
    assert old.receive_all()[-1]["finish_reason"] == [[b"cancelled"]]
    assert new.tokens() == without.tokens() == expected(PROMPT, 300)
    slot.ask(parameters={ONLY_FRONT: "front"}).receive_all()


def test_the_stop_input_ends_the_requests_of_its_id_with_what_they_have(slot: SlotUnderTest) -> None:
    mine, others = slot.ask(request_id="mine", **LONG), slot.ask(request_id="another", **LONG)
    whole = slot.ask(request_id="mine", **LONG | {"streaming": False})
    mine.receive()
    for request_id in ("unknown", "mine"):
        (outputs,) = slot.ask(request_id=request_id, stop=True, **LONG).receive_all()
        assert outputs == {"finish_reason": [[b"stop"]]}
    assert mine.receive_all()[-1]["finish_reason"] == [[b"cancelled"]]
    (stopped,) = whole.receive_all()
    assert stopped["finish_reason"] == [[b"cancelled"]]
    assert stopped["output_ids"][0][0] == expected(PROMPT, stopped["sequence_length"][0][0])
    others.receive()
    slot.ask(request_id="another", stop=True, **LONG)
    assert others.receive_all()[-1]["finish_reason"] == [[b"cancelled"]]


def test_the_slot_is_ready_when_the_engine_is(mortal: EngineServerUnderTest) -> None:
    slots: list[SlotUnderTest] = []
    starting = threading.Thread(target=lambda: slots.append(SlotUnderTest(mortal.path)))
    starting.start()
    starting.join(0.2)
    assert slots == []
    mortal.start()
    starting.join()
    assert slots[0].ask(input_ids=PROMPT, request_output_len=3).tokens() == PROMPT
    slots[0].close()


def test_requests_end_with_the_engine_and_the_next_engine_serves(
    mortal: EngineServerUnderTest, caplog: pytest.LogCaptureFixture
) -> None:
    mortal.start()
    slot = SlotUnderTest(mortal.path)
    for _ in range(3):
        clients = [slot.ask(request_id="mine", **LONG) for _ in range(5)]
        for client in clients:
            client.receive()
        mortal.kill()
        for client in clients:
            with pytest.raises(TritonError, match="E2107 EngineCrashed: The paced engine process ended"):
                client.receive_all()
            assert not client.has_more
        for tensors in (LONG, {"stop": True}):
            with pytest.raises(TritonError, match="it is not ready yet"):
                slot.ask(request_id="mine", **tensors).receive_all()
        mortal.start()
        wait_until(lambda: can_serve(slot))
        assert slot.ask(input_ids=PROMPT, request_output_len=9).tokens() == expected(PROMPT, 9)
    slot.close()
    (fields,) = {str(record.__dict__["fields"]) for record in caplog.records if hasattr(record, "fields")}
    assert fields == str({"request_ids": ["mine"] * 5})


def can_serve(slot: SlotUnderTest) -> bool:
    try:
        slot.ask(request_id="nobody's", stop=True).receive_all()
    except TritonError:
        return False
    return True


@pytest.mark.parametrize(("seed", "says"), [(990005, "E2109"), (990003, "E2107")])
def test_a_fault_of_the_engine_reaches_the_client(
    mortal: EngineServerUnderTest, seed: int, says: str
) -> None:
    mortal.start()
    slot = SlotUnderTest(mortal.path)
    with pytest.raises(TritonError, match=says):
        slot.ask(**LONG, random_seed=np.array([[seed]], np.uint64)).receive_all()
    slot.close()


def test_a_slot_that_is_gone_holds_nothing_in_the_engine(engine: EngineServerUnderTest) -> None:
    slot = SlotUnderTest(engine.path)
    clients = [slot.ask(**LONG) for _ in range(5)]
    for client in clients:
        client.receive()
    assert num_active(engine) >= 5
    slot.close()
    wait_until(lambda: num_active(engine) == 0)
