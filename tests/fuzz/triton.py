"""A Triton that sends anything, over a real connection: events, or E21xx, and always an end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from errors.coded_error import CodedError
from runner.engines.protocol.messages import Submit
from runner.triton_server.client import TritonClient
from tests.fuzz.choices import Choices
from tests.fuzz.refusal import check_refusal

TIMEOUT_S = 0.02
_SUBMIT = Submit(1, [1], max_tokens=8, wants_log_probs=True, num_top_log_probs=1)
_LONGEST_S = 60.0
_HEADS = (
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 60\r\n\r\n",
    b"HTTP/1.1 500 Oh\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: " + b"9" * 5000 + b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\n",
    b"HTTP/2 200\r\n\r\n",
    b"\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nContent-Length: 0\r\n\r\n",
)
_EVENTS = (
    b'data: {"output_ids":[5]}\n\n',
    b'data: {"output_ids":7,"finish_reason":"length"}\n\n',
    b'data: {"output_ids":[-1,99999999999999999999]}\n\n',
    b'data: {"output_ids":[4294967296, -5]}\n\n',
    b'data: {"error":"E1002 PromptTooLong: x"}\n\n',
    b'data: {"error":"' + b"[" * 3000 + b'"}\n\n',
    b'data: {"output_ids":[1],"output_log_probs":[1,2],"top_log_prob_ids":[1],"top_log_probs":[1,2,3]}\n\n',
    b"data: " + b"[" * 5000 + b"\n\n",
    b'data: {"output_ids":' + b"[" * 5000 + b"\n\n",
    b'data: {"output_ids":[1]',
    b"\n\n",
    b"data:\n\n",
    b"event: x\ndata: {}\n\n",
    b'{"error":{"a":[]}}',
    b'{"error":"Prompt length (9) exceeds maximum input length (8)"}',
    b'{"error":"Prompt length (' + b"9" * 5000 + b') exceeds maximum input length (8)"}',
    b"\xff\xfe\n\n",
    b"data: null\n\n",
)
_SIZES = (b"-5", b"0x4", b"1_0", b" 4 ", b"ffffffffff", b"", b"zz", b"4;x=y", b"+4", b"f" * 40)
_loop = asyncio.new_event_loop()


def triton_stream(data: bytes) -> None:
    _loop.run_until_complete(asyncio.wait_for(_ask(data), _LONGEST_S))


async def _ask(data: bytes) -> None:
    choices = Choices(data)
    answer = choices.damaged(_answer(choices))
    ends, is_cut = choices.flag(), choices.flag()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            middle = choices.below(len(answer) + 1) if is_cut else len(answer)
            for piece in (answer[:middle], answer[middle:]):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            if not ends:
                await reader.read()  # Silence, until the client leaves.
        except OSError:
            pass
        finally:
            writer.close()

    await with_server(serve, _read)


async def with_server(
    serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]],
    ask: Callable[[str], Awaitable[None]],
) -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        await ask(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")


async def _read(url: str) -> None:
    async with TritonClient(url, TIMEOUT_S) as client:
        try:
            async for output in client.generate(_SUBMIT):
                assert all(0 <= token < 1 << 32 for token in output.tokens)
        except CodedError as exc:
            check_refusal(exc, "E")


def _answer(choices: Choices) -> bytes:
    head = choices.of((*_HEADS[:1] * 8, *_HEADS))
    events = choices.some(_EVENTS, 5)
    if b"chunked" not in head:
        return head + b"".join(events)
    return head + b"".join(_chunk(choices, event) for event in events) + choices.of((b"0\r\n\r\n", b""))


def _chunk(choices: Choices, content: bytes) -> bytes:
    size = b"%x" % len(content) if choices.below(8) else choices.of(_SIZES)
    return size + b"\r\n" + content + b"\r\n"
