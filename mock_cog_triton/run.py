"""A Cog runner without Triton that emits tokens at a fixed rate: what Cog alone costs.

Needs cog and nothing of this repository. Its log lines are those of the real runner, and beside each what
it would be if Cog took no time.
"""

from __future__ import annotations

import contextvars
import time
from collections.abc import Callable, Iterator
from functools import partial

import cog
from cog import BaseRunner, ConcatenateIterator, Input

TOKEN = " token"


class Runner(BaseRunner):  # type: ignore[misc]  # cog has no types
    """Runner that emits ``n_output_tokens`` tokens at ``tps`` tokens per second, for each prediction."""

    # NOTE: Cog runs predictions at the same time only if the function is async, and streams output only
    # from a plain generator, which it runs in a thread: so an async function returns one.
    @cog.streaming  # type: ignore[untyped-decorator]
    @cog.concurrent(max=64)  # type: ignore[untyped-decorator]
    async def run(
        self,
        tps: float = Input(description="Tokens per second and prediction.", ge=0.01, default=44.0),
        n_output_tokens: int = Input(description="Tokens of the output.", ge=1, default=128),
        output_method: str = Input(
            description="yield: each token as it comes; buffer: buffer_size of them at once; "
            "wait: all at the end; print: each into the log, all at the end.",
            default="yield",
            choices=["yield", "wait", "buffer", "print"],
        ),
        buffer_size: int = Input(description="Tokens that `buffer` yields at once.", ge=1, default=10),
    ) -> ConcatenateIterator[str]:
        self.record_metric("output_token_count", int(n_output_tokens))
        # NOTE: what is printed belongs to the prediction whose context it is printed in.
        log = partial(contextvars.copy_context().run, print)
        return _output(tps, int(n_output_tokens), output_method, int(buffer_size), log)


def _output(
    tps: float, tokens: int, method: str, buffer_size: int, log: Callable[..., None]
) -> Iterator[str]:
    """Yield the output, several tokens at once after a delay, and then log the prediction's figures."""
    started_s = time.perf_counter()
    first_token_s = 0.0
    sent = 0
    for made in range(1, tokens + 1):
        wait_s = started_s + made / tps - time.perf_counter()
        if wait_s > 0:
            time.sleep(wait_s)
        if made == 1:
            first_token_s = time.perf_counter() - started_s
        if method == "print":
            log(TOKEN, end="")
        is_due = method == "yield" or (method == "buffer" and made - sent >= buffer_size)
        if is_due or made == tokens:
            yield TOKEN * (made - sent)
            sent = made
    if method == "print":
        log()
    log("\n".join(_figures(tps, tokens, time.perf_counter() - started_s, first_token_s)))


def _figures(tps: float, tokens: int, duration_s: float, first_token_s: float) -> Iterator[str]:
    yield f"Tokens processed: {tokens}"
    rows = (
        ("tokens per second", tps, tokens / duration_s, ""),
        ("execution time", tokens / tps, duration_s, " seconds"),
        ("time to first token", 1 / tps, first_token_s, " seconds"),
    )
    for name, expected, actual, unit in rows:
        yield f"Expected {name}: {expected:.3f}{unit}"
        yield f"Serverside {name}: {actual:.3f}{unit}"
