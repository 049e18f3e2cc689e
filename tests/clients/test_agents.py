"""Agents of other projects: each calls a tool that a scripted model asks for, and gives its answer."""

from collections.abc import Callable
from typing import Any

import openai
import pytest
from pydantic import BaseModel

from tests.clients.conftest import Runner
from tests.clients.script import ANSWER, CITY, TEMPERATURE, WEATHER

pytestmark = pytest.mark.servers


class City(BaseModel):
    name: str
    is_large: bool


@pytest.fixture
def asked() -> list[str]:
    return []


@pytest.fixture
def get_weather(asked: list[str]) -> Callable[[str], str]:
    def get_weather(city: str) -> str:
        """Return the weather of a city."""
        asked.append(city)
        return TEMPERATURE

    return get_weather


@pytest.mark.parametrize("api", ["chat", "responses"])
@pytest.mark.parametrize("streams", [False, True])
async def test_openais_agents(
    scripted: Runner, api: str, streams: bool, get_weather: Callable[[str], str], asked: list[str]
) -> None:
    import agents

    agents.set_tracing_disabled(True)
    async with openai.AsyncOpenAI(base_url=f"{scripted.openai_url}/v1", api_key="none") as client:
        kind = agents.OpenAIChatCompletionsModel if api == "chat" else agents.OpenAIResponsesModel
        model = kind(model=scripted.model(), openai_client=client)
        agent = agents.Agent("Weather", tools=[agents.function_tool(get_weather)], model=model)
        if streams:
            result: Any = agents.Runner.run_streamed(agent, WEATHER)
            async for _ in result.stream_events():
                pass
        else:
            result = await agents.Runner.run(agent, WEATHER)
    assert result.final_output == ANSWER
    assert asked == ["Paris"]


@pytest.mark.parametrize("uses_responses", [False, True])
def test_langchains_agent(
    scripted: Runner, uses_responses: bool, get_weather: Callable[[str], str], asked: list[str]
) -> None:
    from langchain.agents import create_agent
    from langchain_openai import ChatOpenAI

    chat = ChatOpenAI(
        base_url=f"{scripted.openai_url}/v1",
        api_key="none",
        model=scripted.model(),
        use_responses_api=uses_responses,
    )
    agent = create_agent(chat, [get_weather])
    question = {"messages": [{"role": "user", "content": WEATHER}]}
    assert agent.invoke(question)["messages"][-1].text == ANSWER
    chunks = [chunk for chunk, _ in agent.stream(question, stream_mode="messages")]
    assert "".join(chunk.text for chunk in chunks).endswith(ANSWER)
    assert asked == ["Paris", "Paris"]


@pytest.mark.parametrize("api", ["chat", "responses", "messages"])
async def test_pydantic_ai(
    scripted: Runner, api: str, get_weather: Callable[[str], str], asked: list[str]
) -> None:
    from pydantic_ai import Agent, NativeOutput
    from pydantic_ai.models.anthropic import AnthropicModel
    from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
    from pydantic_ai.providers.anthropic import AnthropicProvider
    from pydantic_ai.providers.openai import OpenAIProvider

    provider = OpenAIProvider(base_url=f"{scripted.openai_url}/v1", api_key="none")
    model: Any
    if api == "messages":
        anthropic = AnthropicProvider(base_url=scripted.openai_url, api_key="none")
        model = AnthropicModel(scripted.model(), provider=anthropic)
    else:
        kind = OpenAIChatModel if api == "chat" else OpenAIResponsesModel
        model = kind(scripted.model(), provider=provider)
    agent = Agent(model, tools=[get_weather])
    assert (await agent.run(WEATHER)).output == ANSWER
    async with agent.run_stream(WEATHER) as stream:
        assert await stream.get_output() == ANSWER
    assert asked == ["Paris", "Paris"]
    if api == "chat":
        structured = Agent(model, output_type=NativeOutput(City))
        assert (await structured.run(CITY)).output == City(name="Paris", is_large=True)
