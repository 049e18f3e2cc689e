"""OpenAI's and Anthropic's own packages: tool calls, reasoning and structured output of a scripted model."""

import json
from typing import Any

import anthropic
import openai
import pytest
from pydantic import BaseModel

from tests.clients.conftest import Runner
from tests.clients.script import ANSWER, CITY, TEMPERATURE, THOUGHT, TWO_ANSWER, TWO_CITIES, WEATHER

pytestmark = pytest.mark.servers

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
FUNCTION = {"name": "get_weather", "description": "The weather of a city.", "parameters": SCHEMA}
TOOLS: list[Any] = [{"type": "function", "function": FUNCTION}]
FLAT_TOOLS: list[Any] = [{"type": "function", "strict": True, **FUNCTION}]
ANTHROPIC_TOOLS: list[Any] = [{"name": "get_weather", "input_schema": SCHEMA}]
MANY = 4096


class City(BaseModel):
    name: str
    is_large: bool


@pytest.fixture(scope="module")
def client(scripted: Runner) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{scripted.openai_url}/v1", api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def claude(scripted: Runner) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=scripted.openai_url, api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def model(scripted: Runner) -> str:
    return scripted.model()


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def chat(client: openai.OpenAI, model: str, messages: list[Any], *, streams: bool, **more: Any) -> Any:
    asked = {"model": model, "messages": messages, "tools": TOOLS, **more}
    if not streams:
        return client.chat.completions.create(**asked)
    with client.chat.completions.stream(**asked) as stream:
        for _ in stream:
            pass
        return stream.get_final_completion()


@pytest.mark.parametrize("streams", [False, True])
def test_a_chat_calls_a_tool_and_answers_with_its_result(
    client: openai.OpenAI, model: str, streams: bool
) -> None:
    messages: list[Any] = [user(WEATHER)]
    choice = chat(client, model, messages, streams=streams).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.reasoning_content.strip() == THOUGHT
    assert not choice.message.content
    (call,) = choice.message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("get_weather", {"city": "Paris"})
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": TEMPERATURE}]
    choice = chat(client, model, messages, streams=streams).choices[0]
    assert (choice.message.content, choice.finish_reason) == (ANSWER, "stop")
    assert not choice.message.tool_calls


@pytest.mark.parametrize("streams", [False, True])
def test_two_calls_have_ids_of_their_own_and_the_text_before_them(
    client: openai.OpenAI, model: str, streams: bool
) -> None:
    messages: list[Any] = [user(TWO_CITIES)]
    message = chat(client, model, messages, streams=streams).choices[0].message
    assert message.content.strip() == "I ask for both."
    cities = [json.loads(call.function.arguments)["city"] for call in message.tool_calls]
    assert cities == ["Paris", "Rome"]
    assert len({call.id for call in message.tool_calls}) == 2
    messages.append(message)
    for call, temperature in zip(message.tool_calls, ("18 degrees", "24 degrees"), strict=True):
        messages.append({"role": "tool", "tool_call_id": call.id, "content": temperature})
    assert chat(client, model, messages, streams=streams).choices[0].message.content == TWO_ANSWER


def test_a_call_is_parsed_into_its_class(client: openai.OpenAI, model: str) -> None:
    class GetWeather(BaseModel):
        city: str

    tool = openai.pydantic_function_tool(GetWeather, name="get_weather")
    answer = client.chat.completions.parse(model=model, messages=[user(WEATHER)], tools=[tool])
    (call,) = answer.choices[0].message.tool_calls or []
    assert call.function.parsed_arguments == GetWeather(city="Paris")


def test_structured_output_is_parsed_by_each_api(client: openai.OpenAI, model: str) -> None:
    expected = City(name="Paris", is_large=True)
    chat = client.chat.completions.parse(model=model, messages=[user(CITY)], response_format=City)
    assert chat.choices[0].message.parsed == expected
    assert client.responses.parse(model=model, input=CITY, text_format=City).output_parsed == expected


def respond(client: openai.OpenAI, model: str, *, streams: bool, **asked: Any) -> Any:
    asked = {"model": model, "tools": FLAT_TOOLS, "store": False, **asked}
    if not streams:
        return client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        kinds = [event.type for event in stream]
        assert (kinds[0], kinds[-1]) == ("response.created", "response.completed")
        return stream.get_final_response()


@pytest.mark.parametrize("streams", [False, True])
def test_responses_call_a_tool_and_answer_with_its_result(
    client: openai.OpenAI, model: str, streams: bool
) -> None:
    items: list[Any] = [user(WEATHER)]
    response = respond(client, model, streams=streams, input=items)
    assert response.status == "completed"
    (call,) = [item for item in response.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    assert [item.type for item in response.output] == ["reasoning", "function_call"]
    result = {"type": "function_call_output", "call_id": call.call_id, "output": TEMPERATURE}
    items += [*response.output, result]
    response = respond(client, model, streams=streams, input=items)
    assert response.output_text == ANSWER
    assert response.usage.output_tokens > 0


def message(claude: anthropic.Anthropic, model: str, *, streams: bool, **asked: Any) -> Any:
    asked = {"model": model, "max_tokens": MANY, "tools": ANTHROPIC_TOOLS, **asked}
    if not streams:
        return claude.messages.create(**asked)
    with claude.messages.stream(**asked) as stream:
        for _ in stream:
            pass
        return stream.get_final_message()


@pytest.mark.parametrize("streams", [False, True])
def test_messages_use_a_tool_and_answer_with_its_result(
    claude: anthropic.Anthropic, model: str, streams: bool
) -> None:
    messages: list[Any] = [user(WEATHER)]
    answer = message(
        claude, model, streams=streams, messages=messages, thinking={"type": "enabled", "budget_tokens": 1024}
    )
    assert answer.stop_reason == "tool_use"
    thinking, use = answer.content
    assert (thinking.type, thinking.thinking.strip()) == ("thinking", THOUGHT)
    assert (use.name, use.input) == ("get_weather", {"city": "Paris"})
    result = {"type": "tool_result", "tool_use_id": use.id, "content": TEMPERATURE}
    messages += [{"role": "assistant", "content": answer.content}, {"role": "user", "content": [result]}]
    answer = message(claude, model, streams=streams, messages=messages, system="Be short.")
    assert answer.stop_reason == "end_turn"
    assert [part.text for part in answer.content] == [ANSWER]
    assert answer.usage.output_tokens > 0


def test_tokens_are_counted_as_they_are_billed(
    client: openai.OpenAI, claude: anthropic.Anthropic, model: str
) -> None:
    asked: dict[str, Any] = {"model": model, "messages": [user("Hi")], "tools": ANTHROPIC_TOOLS}
    counted = claude.messages.count_tokens(**asked).input_tokens
    assert counted == claude.messages.create(**asked, max_tokens=MANY).usage.input_tokens
    counted = client.responses.input_tokens.count(model=model, input="Hi").input_tokens
    assert counted == client.responses.create(model=model, input="Hi").usage.input_tokens


def test_models_are_listed_by_both_apis(
    client: openai.OpenAI, claude: anthropic.Anthropic, model: str
) -> None:
    assert [each.id for each in client.models.list()] == [each.id for each in claude.models.list()]
    assert claude.models.retrieve(model).display_name == client.models.retrieve(model).id == model
    assert claude.models.retrieve(model).created_at.timestamp() == client.models.retrieve(model).created


def test_refusals_are_the_exceptions_for_them(
    client: openai.OpenAI, claude: anthropic.Anthropic, model: str
) -> None:
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model="no-such-model", input="Hi")
    with pytest.raises(openai.BadRequestError):
        client.responses.create(model=model, input="Hi", previous_response_id="resp_1")
    with pytest.raises(anthropic.NotFoundError):
        claude.messages.create(model="no-such-model", max_tokens=5, messages=[user("Hi")])
    with pytest.raises(anthropic.BadRequestError):
        claude.messages.create(
            model=model, max_tokens=5, messages=[user("Hi")], extra_body={"temperature": 9}
        )
