"""The runner's Triton client against a server that misbehaves in every way a server can.

The server is a stand-in (``misbehaving_server``): the real Triton does none of this when asked to. It is one
module, because each test is one misbehaviour, and ``read`` and ``error_of`` tell what came of it.
"""

from __future__ import annotations

import asyncio
import json
import socket

import pytest
from aiohttp import web

from errors.coded_error import CodedError
from errors.engines import EngineCrashed
from errors.requests import InvalidTensor, PromptTooLong, UnsupportedArgument
from errors.triton import (
    TritonMalformedEvent,
    TritonMalformedJSON,
    TritonTimeout,
    TritonTokenizerError,
    TritonUnavailable,
    TritonUnknownError,
)
from runner.engines.protocol.messages import Output, Submit, TokenLogProb
from runner.triton_server.client import TritonClient
from tests import fast
from tests.runner.misbehaving_server import (
    TIMEOUT_S,
    Handler,
    answer,
    be_silent,
    reset,
    served,
    stream,
)

GOOD = b'data: {"model_name":"tensorrt_llm","output_ids":5,"sequence_length":1}\n\n'
LAST = b'data: {"output_ids":[6,7],"finish_reason":"length"}\n\n'
SUBMIT = Submit(0, [1], 1 << 20)


def tokens_of(outputs: list[Output]) -> list[int]:
    return [token for output in outputs for token in output.tokens]


async def collect(client: TritonClient, submit: Submit = SUBMIT) -> list[Output]:
    return [output async for output in client.generate(submit)]


def read(handler: Handler, submit: Submit = SUBMIT) -> list[Output]:
    async def run() -> list[Output]:
        async with served(handler) as client:
            return await collect(client, submit)

    return asyncio.run(run())


def error_of(handler: Handler, submit: Submit = SUBMIT) -> tuple[CodedError, list[Output]]:
    """The error that a generation ends with, and what came before it."""
    received: list[Output] = []

    async def run() -> CodedError:
        async with served(handler) as client:
            try:
                async for output in client.generate(submit):
                    received.append(output)
            except CodedError as error:
                return error
        raise AssertionError("it ended well")

    return asyncio.run(run()), received


def test_events_arrive_in_order_whatever_way_they_are_cut() -> None:
    data = GOOD * 3 + LAST
    for size in (1, 2, 7, 64, len(data)):
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        outputs = read(stream(*pieces))
        assert tokens_of(outputs) == [5, 5, 5, 6, 7]
        assert [output.finish_reason for output in outputs if output.finish_reason] == ["length"]
        assert outputs[-1].finish_reason == "length"


def test_what_has_arrived_together_is_given_together() -> None:
    (output,) = read(stream(GOOD * 50 + LAST))
    assert (output.tokens, output.finish_reason) == ([*[5] * 50, 6, 7], "length")


def test_an_event_without_tokens_is_one_of_none() -> None:
    (output,) = read(stream(b'data: {"output_ids":[],"finish_reason":"end"}\n\n'))
    assert (output.tokens, output.finish_reason) == ([], "end")


@pytest.mark.parametrize(("max_tokens", "reason"), [(3, "length"), (4, "end")])
def test_a_stream_of_nvidias_backend_which_has_no_reason_gets_one(max_tokens: int, reason: str) -> None:
    *outputs, last = read(stream(GOOD, GOOD, GOOD), Submit(0, [1], max_tokens))
    assert tokens_of(outputs) == [5, 5, 5]
    assert (last.tokens, last.finish_reason) == ([], reason)


def test_a_stream_without_tokens_has_not_ended() -> None:
    assert all(output.finish_reason is None for output in read(stream()))


def event_of(**tensors: object) -> bytes:
    return f"data: {json.dumps(tensors)}\n\n".encode()


def test_each_token_has_its_log_probability() -> None:
    events = [
        event_of(
            output_ids=[40, 41],
            output_log_probs=[-1.0, -2.0],
            top_log_prob_ids=[40, 7, 41, -1],
            top_log_probs=[-1.0, -1.5, -2.0, 0.0],
        ),
        event_of(output_ids=42, output_log_probs=-3.0, finish_reason="length"),
    ]
    outputs = read(stream(*events), Submit(0, [1], 9, wants_log_probs=True, num_top_log_probs=2))
    assert [each for output in outputs for each in output.log_probs] == [
        TokenLogProb(-1.0, [(40, -1.0), (7, -1.5)]),
        TokenLogProb(-2.0, [(41, -2.0)]),
        TokenLogProb(-3.0),
    ]


@pytest.mark.parametrize("values", [None, -1.0, [-1.0], [-1.0, -2.0, -3.0]])
def test_values_for_other_than_all_tokens_are_an_error_instead_of_lost_text(
    values: float | list[float] | None,
) -> None:
    event = event_of(output_ids=[40, 41], finish_reason="length", output_log_probs=values)
    error, _ = error_of(stream(event), Submit(0, [1], 9, wants_log_probs=True))
    assert isinstance(error, TritonMalformedEvent)
    assert "2 output_ids" in str(error)
    (output,) = read(stream(event))
    assert (output.tokens, output.log_probs) == ([40, 41], [])


@pytest.mark.parametrize(
    "data",
    [
        b"data: {oops\n\n",
        b"data: \n\n",
        b"data: hello\n\n",
        b'data: {"output_ids": [\xff]}\n\n',
        b'data: {"a": 1\n\n',
    ],
)
def test_an_event_that_is_no_json_is_e2103_and_shown(data: bytes) -> None:
    error, before = error_of(stream(GOOD, data))
    assert isinstance(error, TritonMalformedJSON)
    assert tokens_of(before) in ([], [5])


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"model_name": "x"},
        {"output_ids": None},
        {"output_ids": "abc"},
        {"output_ids": [1.5]},
        [1],
        7,
        None,
    ],
)
def test_an_event_without_tokens_or_error_is_e2104_and_shown(document: object) -> None:
    error, _ = error_of(stream(f"data: {json.dumps(document)}\n\n".encode()))
    assert isinstance(error, TritonMalformedEvent)
    assert json.dumps(document) in error.sentence


def test_an_event_cut_in_half_by_the_streams_end_is_e2103() -> None:
    error, before = error_of(stream(GOOD, GOOD[:20]))
    assert isinstance(error, TritonMalformedJSON)
    assert tokens_of(before) == [5]


def test_a_huge_wrong_event_is_not_shown_whole() -> None:
    error, _ = error_of(stream(b"data: " + b"x" * 100_000 + b"\n\n"))
    assert isinstance(error, TritonMalformedJSON)
    assert len(str(error)) < 500


@pytest.mark.parametrize(
    "pieces", fast.few([((),), ((GOOD,),), ((GOOD, GOOD[:10]),)]), ids=["at once", "later", "in an event"]
)
def test_silence_is_e2101_with_the_time_it_took(pieces: tuple[bytes, ...]) -> None:
    error, _ = error_of(stream(*pieces, then=be_silent))
    assert isinstance(error, TritonTimeout)
    assert f"Triton timed out after {TIMEOUT_S}s: httpx.ReadTimeout." in error.sentence


@pytest.mark.slow
def test_a_long_answer_that_goes_on_is_no_timeout() -> None:
    async def trickle(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(8):
            await response.write(GOOD)
            await asyncio.sleep(TIMEOUT_S / 5)
        await response.write(LAST)
        return response

    assert len(tokens_of(read(trickle))) == 10


@pytest.mark.parametrize("pieces", [(), (GOOD,), (GOOD, GOOD[:10])], ids=["at once", "later", "in an event"])
def test_a_connection_that_breaks_is_e2105(pieces: tuple[bytes, ...]) -> None:
    error, _ = error_of(stream(*pieces, then=reset))
    assert isinstance(error, TritonUnavailable)
    assert "restarted automatically" in error.sentence


def test_what_arrived_before_the_connection_broke_reaches_a_slow_reader() -> None:
    async def run() -> list[int]:
        has_read, is_cut = asyncio.Event(), asyncio.Event()

        async def cut_later(request: web.Request) -> web.StreamResponse:
            response = web.StreamResponse()
            await response.prepare(request)
            await response.write(GOOD)
            await has_read.wait()
            await response.write(LAST)
            await reset(request)
            is_cut.set()
            return response

        tokens: list[int] = []

        async def read_slowly(client: TritonClient) -> None:
            async for output in client.generate(SUBMIT):
                tokens.extend(output.tokens)
                has_read.set()
                await is_cut.wait()
                await asyncio.sleep(0.2)  # The client's loop sees that the connection is gone.

        async with served(cut_later) as client:
            with pytest.raises(TritonUnavailable):
                await read_slowly(client)
        return tokens

    assert asyncio.run(run()) == [5, 6, 7]


def test_a_port_that_nobody_listens_on_is_e2105() -> None:
    async def run() -> None:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        async with TritonClient(f"http://127.0.0.1:{port}", TIMEOUT_S) as client:
            with pytest.raises(TritonUnavailable):
                await collect(client)
            assert not await client.is_answering()

    asyncio.run(run())


def as_json(text: str) -> bytes:
    return json.dumps({"error": text}).encode()


TEXTS: list[tuple[str, type[CodedError]]] = [
    ("E1103 InvalidTensor: top_k must be at least 0, but is -1.", InvalidTensor),
    ("in ensemble 'ensemble', E2107 EngineCrashed: The paced engine process ended (x).", EngineCrashed),
    ("Prompt length (600) exceeds maximum input length (512)", PromptTooLong),
    ("the first token of the stop sequence IDs was not '!', which suggests ...", TritonTokenizerError),
    ("unexpected shape for input 'input_ids'", TritonUnknownError),
    ("unexpected inference input 'guided_decoding_guide' for model 'tensorrt_llm'", UnsupportedArgument),
    ("", TritonUnknownError),
]


@pytest.mark.parametrize(("text", "kind"), TEXTS)
@pytest.mark.parametrize("place", ["answer", "first event", "later event"])
def test_an_error_that_triton_tells_keeps_its_code_and_its_text_wherever_it_stands(
    place: str, text: str, kind: type[CodedError]
) -> None:
    event = b"data: " + as_json(text) + b"\n\n\n"
    handlers = {
        "answer": answer(400, as_json(text)),
        "first event": answer(400, event, "text/event-stream"),
        "later event": stream(GOOD, event),
    }
    error, before = error_of(handlers[place])
    assert type(error) is kind
    assert not str(error).endswith(('"}', "\n"))
    if kind is not PromptTooLong:
        assert text.partition(": ")[2] in error.sentence
    assert len(before) in (0, 1)


def test_the_two_lengths_of_nvidias_backend_become_facts() -> None:
    error, _ = error_of(
        answer(400, as_json("... Prompt length (600) exceeds maximum input length (512). ..."))
    )
    assert error.facts == {"prompt_tokens": 600, "max_input_tokens": 512, "excess_tokens": 88}


@pytest.mark.parametrize(
    ("body", "content_type"),
    [
        (b"<html>Internal Server Error</html>", "text/html"),
        (b"\xff\xfe\x00", "text/plain; charset=utf-8"),
        (b"", "text/plain"),
        (b'["error"]', "application/json"),
        (b'{"detail": 1}', "application/json"),
    ],
)
def test_a_failure_that_is_not_tritons_json_is_e2100_with_its_text(body: bytes, content_type: str) -> None:
    error, _ = error_of(answer(500, body, content_type))
    assert isinstance(error, TritonUnknownError)
    assert body.decode(errors="replace").replace("\0", r"\x00") in error.sentence


def test_leaving_a_stream_closes_its_connection() -> None:
    async def run() -> None:
        is_closed = asyncio.Event()

        async def wait_for_close(request: web.Request) -> None:
            while request.transport is not None and not request.transport.is_closing():  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            is_closed.set()

        async with served(stream(GOOD, then=wait_for_close)) as client:
            batches = client.generate(SUBMIT)
            await anext(batches)
            assert not is_closed.is_set()
            await batches.aclose()
            await asyncio.wait_for(is_closed.wait(), 300)

    asyncio.run(run())


def test_the_health_is_what_the_slot_answers() -> None:
    async def run(handler: Handler) -> bool:
        async with served(handler) as client:
            return await client.is_answering()

    assert asyncio.run(run(answer(200, b"{}")))
    assert not asyncio.run(run(answer(400, as_json("E2107 EngineCrashed: it ended."))))
    assert not asyncio.run(run(stream(then=reset)))


@pytest.mark.parametrize(
    "answered",
    [
        b"hello\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n{}",
    ],
)
def test_an_answer_that_is_not_http_as_triton_speaks_it_is_e2105(answered: bytes) -> None:
    async def run() -> None:
        async def answer_and_close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answered)
            writer.close()

        server = await asyncio.start_server(answer_and_close, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        async with server, TritonClient(f"http://127.0.0.1:{port}", TIMEOUT_S) as client:
            with pytest.raises(TritonUnavailable):
                await collect(client)

    asyncio.run(run())


def test_a_connection_is_used_again_unless_its_answer_was_left() -> None:
    peers: list[object] = []

    async def remember(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        peers.append(request.transport.get_extra_info("peername"))
        return await stream(GOOD, LAST)(request)

    async def run() -> None:
        async with served(remember) as client:
            await collect(client)
            await collect(client)
            batches = client.generate(SUBMIT)
            await anext(batches)
            await batches.aclose()
            await collect(client)

    asyncio.run(run())
    assert peers[0] == peers[1] == peers[2]
    assert len(peers) == 4


def test_a_reader_that_is_slow_but_reads_gets_all() -> None:
    pieces = (GOOD * 5000,) * 3

    async def run() -> int:
        count = 0
        async with served(stream(*pieces)) as client:
            async for output in client.generate(SUBMIT):
                await asyncio.sleep(0.02)
                count += len(output.tokens)
        return count

    assert asyncio.run(run()) == 15_000


@pytest.mark.parametrize("pieces", [(), (GOOD,)], ids=["before the answer", "in a stream"])
def test_a_client_that_ends_all_ends_waiting_requests_and_takes_no_new_ones(
    pieces: tuple[bytes, ...],
) -> None:
    is_asked = asyncio.Event()

    async def wait(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/generate"):
            return web.Response(text="{}")
        is_asked.set()
        if not pieces:
            await be_silent(request)
        return await stream(*pieces, then=be_silent)(request)

    async def run() -> None:
        async with served(wait) as client:
            assert await client.is_answering()
            waiting = asyncio.ensure_future(collect(client))
            await is_asked.wait()
            await asyncio.sleep(TIMEOUT_S / 5)
            client.end_all()
            with pytest.raises(TritonUnavailable):
                await waiting
            with pytest.raises(TritonUnavailable):
                await collect(client)
            assert not await client.is_answering()

    asyncio.run(run())


def test_a_triton_makes_no_embeddings() -> None:
    async def answers(request: web.Request) -> web.StreamResponse:
        raise AssertionError("it was asked")

    error, outputs = error_of(answers, Submit(0, [1], 0, embeds=True))
    assert (error.code, outputs) == ("E1011", [])
