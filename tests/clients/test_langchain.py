"""LangChain's ChatOpenAI against the runner's API."""

import pytest
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, Field

from tests.clients.conftest import Runner

pytestmark = pytest.mark.servers


class City(BaseModel):
    name: str = Field(max_length=20)
    is_large: bool


def test_structured_output_and_a_forced_tools_arguments_are_of_the_class(runner: Runner) -> None:
    chat = ChatOpenAI(
        base_url=f"{runner.openai_url}/v1",
        api_key="none",
        model=runner.model(),
        temperature=0,
        max_tokens=300,
    )
    assert isinstance(chat.with_structured_output(City).invoke("Name a city."), City)
    one = chat.bind_tools([City], tool_choice="City", strict=True, parallel_tool_calls=False)
    (call,) = one.invoke("Name a city.").tool_calls
    assert City(**call["args"])
    forced = chat.with_structured_output(City, method="function_calling", strict=True)
    assert isinstance(forced.invoke("Name a city."), City)
