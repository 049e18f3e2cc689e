"""LangChain's ChatOpenAI against the runner's API."""

from __future__ import annotations

import asyncio

import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

from tests.clients.conftest import Runner

pytestmark = pytest.mark.servers


class City(BaseModel):
    name: str = Field(max_length=20)
    is_large: bool


@pytest.fixture(scope="module")
def chat(runner: Runner) -> ChatOpenAI:
    return ChatOpenAI(
        base_url=f"{runner.openai_url}/v1",
        api_key="none",
        model=runner.model(),
        temperature=0,
        max_tokens=300,
        stream_usage=True,
    )


def test_streams_batches_and_coroutines_give_the_text_that_invoke_gives(chat: ChatOpenAI) -> None:
    short = chat.bind(max_tokens=12)
    answer = short.invoke("What is machine learning?")
    assert answer.content
    assert answer.usage_metadata is not None
    chunks = list(short.stream("What is machine learning?"))
    assert "".join(str(chunk.content) for chunk in chunks) == answer.content
    assert [chunk.usage_metadata for chunk in chunks if chunk.usage_metadata] == [answer.usage_metadata]
    batch = short.batch(["What is machine learning?"] * 3)
    assert [each.content for each in batch] == [answer.content] * 3
    assert asyncio.run(short.ainvoke("What is machine learning?")).content == answer.content


def test_structured_output_is_an_object_of_the_class(chat: ChatOpenAI) -> None:
    assert isinstance(chat.with_structured_output(City).invoke("Name a city."), City)


def test_bound_tools_are_shown_to_the_model_and_it_answers_text(chat: ChatOpenAI) -> None:
    plain = chat.bind(max_tokens=4).invoke("Hello")
    with_tools = chat.bind(max_tokens=4).bind_tools([City]).invoke("Hello")
    assert with_tools.tool_calls == []
    assert plain.usage_metadata is not None
    assert with_tools.usage_metadata is not None


def test_a_forced_tool_is_called_with_arguments_of_its_class(chat: ChatOpenAI) -> None:
    one = chat.bind_tools([City], tool_choice="City", strict=True, parallel_tool_calls=False)
    (call,) = one.invoke("Name a city.").tool_calls
    assert City(**call["args"])
    forced = chat.with_structured_output(City, method="function_calling", strict=True)
    assert isinstance(forced.invoke("Name a city."), City)
