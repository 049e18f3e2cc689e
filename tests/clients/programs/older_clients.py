"""LlamaIndex and instructor, in .venv-gateways: ``older_clients URL MODEL`` prints what they got, as JSON."""

import asyncio
import json
import sys
from typing import Any

import instructor
import openai
from llama_index.core.agent.workflow import FunctionAgent
from llama_index.llms.openai_like import OpenAILike
from pydantic import BaseModel

from tests.clients.script import CITY, EXTRACT, TEMPERATURE, WEATHER


class City(BaseModel):
    name: str
    is_large: bool


async def ask_agent(url: str, model: str) -> dict[str, Any]:
    asked: list[str] = []

    def get_weather(city: str) -> str:
        """Return the weather of a city."""
        asked.append(city)
        return TEMPERATURE

    llm = OpenAILike(
        model=model, api_base=url, api_key="none", is_chat_model=True, is_function_calling_model=True
    )
    answer = await FunctionAgent(tools=[get_weather], llm=llm).run(WEATHER)
    return {"answer": str(answer), "asked": asked}


def extract(url: str, model: str) -> dict[str, Any]:
    """Return what instructor makes of a call of a tool, and of JSON."""
    client = openai.OpenAI(base_url=url, api_key="none", max_retries=0)
    found = {}
    for mode, question in (
        (instructor.Mode.TOOLS, EXTRACT),
        (instructor.Mode.JSON_SCHEMA, CITY),
        (instructor.Mode.JSON, CITY),
    ):
        city: City = instructor.from_openai(client, mode=mode).chat.completions.create(
            model=model, response_model=City, messages=[{"role": "user", "content": question}], max_retries=0
        )
        found[mode.name] = city.model_dump()
    return found


if __name__ == "__main__":
    url, model = sys.argv[1:]
    print(json.dumps({"agent": asyncio.run(ask_agent(url, model)), "cities": extract(url, model)}))
