"""A client of an engine server that remembers what it got, and an engine directory without a tokenizer."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from runner.engines.protocol.messages import (
    Cached,
    Cancel,
    Failed,
    Finished,
    FromClient,
    LogProbs,
    Statistics,
    Submit,
    ToClient,
    TokenLogProb,
    Tokens,
)
from tests.runner.engines.engine_server import EngineServerUnderTest

DEADLINE_S = 240.0


def make_paced_directory(path: Path, tokens_per_second: object) -> Path:
    path.mkdir(exist_ok=True)
    (path / "config.json").write_text(json.dumps({"vocab_size": 1000, "max_position_embeddings": 100_000}))
    (path / "paced.json").write_text(json.dumps({"tokens_per_second": tokens_per_second}))
    return path


class Listening:
    """A reader in a thread, once the engine is ready. ``wait_for`` waits until something is so."""

    def __init__(self, server: EngineServerUnderTest) -> None:
        self._client = server.connect()
        self.ready = self._client.ready
        self._news = threading.Condition()
        self.messages: list[ToClient] = []
        self.is_closed = False
        """True once the engine server has closed the connection."""
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        with suppress(EOFError):
            while True:
                message = self._client.receive()
                with self._news:
                    self.messages.append(message)
                    self._news.notify_all()
        with self._news:
            self.is_closed = True
            self._news.notify_all()

    def send(self, *messages: FromClient) -> None:
        self._client.send(*messages)

    def close(self) -> None:
        with suppress(OSError):  # The engine server was first.
            self._client.socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._client.close()

    def __enter__(self) -> Listening:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def wait_for(self, condition: Callable[[], object]) -> None:
        with self._news:
            assert self._news.wait_for(condition, DEADLINE_S), "it never happened"

    def wait_for_tokens(self, request_id: int) -> None:
        self.wait_for(lambda: self.tokens(request_id))

    def wait_for_close(self) -> None:
        self.wait_for(lambda: self.is_closed)

    def wait_for_end(self, request_id: int) -> str:
        """Return how it ended; see ``ends``."""
        self.wait_for(lambda: self.ends(request_id))
        return self.ends(request_id)[0]

    def answer(self, submit: Submit) -> tuple[list[int], str]:
        self.send(submit)
        end = self.wait_for_end(submit.request_id)
        return self.tokens(submit.request_id), end

    def cancel(self, request_id: int) -> None:
        self.send(Cancel(request_id))

    def _new(self, kind: type[Tokens | LogProbs | Cached], request_id: int) -> list[Any]:
        batches = [message.new for message in self.messages if isinstance(message, kind)]
        return [new for batch in batches for its_id, new, *_ in batch if its_id == request_id]

    def tokens(self, request_id: int) -> list[int]:
        return [*chain.from_iterable(self._new(Tokens, request_id))]

    def log_probs(self, request_id: int) -> list[TokenLogProb]:
        return [*chain.from_iterable(self._new(LogProbs, request_id))]

    def cached(self, request_id: int) -> list[int]:
        """Return what the engine said of tokens of the prompt that it had already; once, if all is well."""
        return self._new(Cached, request_id)

    def ends(self, request_id: int) -> list[str]:
        """Return how a request ended: finish reasons and errors; one, if all is well."""
        ends: list[str] = []
        for message in tuple(self.messages):
            if isinstance(message, Finished) and message.request_id == request_id:
                ends.append(message.reason)
            if isinstance(message, Failed) and message.request_id == request_id:
                ends.append(str(message.error.restore()))
        return ends

    def finished(self, request_id: int) -> Finished:
        """Its only end, which is no error."""
        finished = (each for each in self.messages if isinstance(each, Finished))
        (end,) = (each for each in finished if each.request_id == request_id)
        return end

    def statistics(self) -> list[Statistics]:
        return [message for message in self.messages if isinstance(message, Statistics)]
