"""Predictions of a service under test, short and long, for tests that break something meanwhile."""

from typing import Any

import pytest

from errors.coded_error import CodedError
from runner.engines.protocol.messages import Sampling
from runner.generation.generation import Generation
from runner.generation.request import GenerationRequest
from tests.runner.servers import TritonUnderTest

QUESTION = "What is machine learning?"


class Running:
    """A long generation that has begun; it runs in the server's event loop."""

    def __init__(self, server: TritonUnderTest, max_tokens: int = 4000) -> None:
        self._server = server
        self._text = self.request(server, max_tokens).text()
        self._first = server.run(anext(self._text))

    @staticmethod
    def request(server: TritonUnderTest, max_tokens: int) -> Generation:
        request = GenerationRequest(QUESTION, max_tokens, 0, (), Sampling(temperature=0))
        return server.service.generate(request)

    async def read_all(self) -> str:
        return self._first + "".join([text async for text in self._text])

    def error(self) -> CodedError:
        """Return the error with which it ends."""

        async def read_on() -> CodedError:
            with pytest.raises(CodedError) as raised:
                await self.read_all()
            return raised.value

        return self._server.run(read_on())


def answer(server: TritonUnderTest, max_tokens: int = 12, **sampling: Any) -> str:
    """Return a prediction, as text."""

    async def read() -> str:
        request = GenerationRequest(QUESTION, max_tokens, 0, (), Sampling(**{"temperature": 0, **sampling}))
        generation: Generation = server.service.generate(request)
        return "".join([text async for text in generation.text()])

    return server.run(read())


def is_healthy(server: TritonUnderTest) -> bool:
    return server.run(server.service.is_healthy())
