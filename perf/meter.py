"""CPU time in µs that counting requests takes; the best of some rounds.

In one thread and without a server: the counting alone, into a file as a runner's processes do it, and the
middleware that names, counts, logs and traces calls of the OpenAI-compatible API, around an endpoint that
does nothing. What differs between its rows is what each setting adds.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from errors.api import UnknownField
from perf.options import Options
from perf.table import table
from runner.api.call import call_of
from runner.api.call_observer import CallObserver
from runner.api.error_response import ErrorResponse
from runner.observability.meter import Meter, RequestMeter

_ROUNDS = 7
_REQUESTS = 20_000
_BATCHES = 200_000
_HEADERS = [(b"content-type", b"application/json"), (b"x-request-id", b"0123456789abcdef")]


def main(arguments: Sequence[str] | None = None) -> int:
    Options("meter", __doc__).parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        meter = Meter("openai", Path(folder))
        rows = [
            (
                "counting: a request, from its beginning to its end",
                _best(lambda: _requests(meter), _REQUESTS),
            ),
            ("counting: each time that tokens arrive", _best(lambda: _arrivals(meter), _BATCHES)),
            ("a call without the middleware", _best(lambda: asyncio.run(_calls(_answer)), _REQUESTS)),
        ]
        for name, app, is_log_json in (
            ("the same with it", _answer, False),
            ("the same, refused", _refuse, False),
            ("the same, refused, with its line of JSON", _refuse, True),
        ):
            watch = CallObserver(app, meter, is_log_json=is_log_json, tracing=None)
            with contextlib.redirect_stderr(io.StringIO()):
                best_s = _best(lambda watch=watch: asyncio.run(_calls(watch)), _REQUESTS)  # type: ignore[misc]
            rows.append((name, best_s))
        meter.close()
    print(table(("what", "us"), [(name, f"{best_s * 1e6:.2f}") for name, best_s in rows]))
    return 0


def _best(work: Callable[[], None], count: int) -> float:
    """Seconds of processor time of one of ``count``, in the round that was disturbed least."""
    seconds = []
    for _ in range(_ROUNDS):
        start_s = time.process_time()
        work()
        seconds.append(time.process_time() - start_s)
    return min(seconds) / count


def _requests(meter: Meter) -> None:
    for _ in range(_REQUESTS):
        request = RequestMeter(meter)
        request.began()
        request.sent(0.001)
        request.received(1, time.perf_counter())
        request.ended(is_finished=True, input_tokens=5, output_tokens=1, detokenize_s=0.0)


def _arrivals(meter: Meter) -> None:
    request = RequestMeter(meter)
    for number in range(_BATCHES):
        request.received(1, 1.0 + number / 100)


async def _answer(scope: Scope, receive: Receive, send: Send) -> None:
    if "cog_triton.call" in scope:
        call_of(scope).is_generating = True
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    await ErrorResponse(UnknownField(name="best_of", remedy="leave it out"))(scope, receive, send)


async def _calls(app: ASGIApp) -> None:
    async def receive() -> Message:
        return {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        pass

    for _ in range(_REQUESTS):
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": _HEADERS}
        await app(scope, receive, send)
