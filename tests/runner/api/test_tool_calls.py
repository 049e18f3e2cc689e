"""Chats whose answers have reasoning and calls: the real application, over a model that writes given text."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx
import pytest

from runner.api.application import API
from runner.api.asgi import make_application
from runner.api.call import Call
from runner.api.call_observer import CallObserver
from runner.api.served import Served
from runner.chat.families.hermes import HERMES
from runner.chat.template import ChatTemplate
from runner.engines.protocol.messages import FinishReason, Output, Submit
from runner.generation.generation import Generation
from runner.generation.model import ModelFacts
from runner.generation.request import GenerationRequest
from runner.generation.tokenizing import Tokenizing
from runner.observability.meter import Meter
from runner.settings.settings import load_settings
from tests.runner.api.apis import CHAT_TEMPLATE, data_of, error_of
from tests.runner.paced_engine import END_ID, make_tokenizer

CHAT = "/v1/chat/completions"
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}]
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Warm?"}], "tools": TOOLS}
CALLS = (
    "<think>\nTwo cities.\n</think>\n\nLet me see.\n"
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "weather", "arguments": {"city": "Łódź"}}\n</tool_call>'
)
ARGUMENTS = [{"city": "Paris"}, {"city": "Łódź"}]
TOKENIZER = make_tokenizer()


class Model:
    """Writes ``text``, ``step_tokens`` at once."""

    def __init__(self, folder: Path) -> None:
        self.text, self.step_tokens = CALLS, 1
        self.reason: FinishReason = "end"
        tokenizing = Tokenizing(TOKENIZER, max_bytes=1 << 16, max_tokens=4095)
        template = ChatTemplate({"default": CHAT_TEMPLATE}, {})
        self.facts = ModelFacts(tokenizing, (END_ID,), END_ID, 4096, 4095, template, HERMES)
        served = Served(self.facts, load_settings({"ENGINE_DIR": "."}), "transformers", ("model",))
        application = make_application(API(served, self._is_ready, self._generation, folder), served)
        watched = CallObserver(application, Meter("openai", folder), is_log_json=False, tracing=None)
        self._transport = httpx.ASGITransport(watched)

    async def generate(self, submit: Submit) -> AsyncGenerator[Output, None]:
        ids = TOKENIZER.encode(self.text, add_special_tokens=False).ids[: submit.max_tokens]
        for at in range(0, len(ids), self.step_tokens):
            yield Output(ids[at : at + self.step_tokens])
        yield Output([], finish_reason="length" if len(ids) == submit.max_tokens else self.reason)

    def _generation(self, request: GenerationRequest, call: Call) -> Generation:
        return Generation(request, self.facts, self)

    async def _is_ready(self) -> bool:
        return True

    def post(self, **fields: Any) -> httpx.Response:
        async def send() -> httpx.Response:
            async with httpx.AsyncClient(transport=self._transport, base_url="http://api") as client:
                return await client.post(CHAT, json={**ASKED, **fields})

        return asyncio.run(send())

    def ask(self, **fields: Any) -> dict[str, Any]:
        response = self.post(**fields)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model(tmp_path_factory.mktemp("calls"))


@pytest.fixture(autouse=True)
def _as_it_was(model: Model) -> None:
    model.text, model.step_tokens, model.reason = CALLS, 1, "end"


@pytest.mark.parametrize("step_tokens", [1, 2, 7, 1000])
def test_reasoning_text_and_calls_are_apart_whole_and_streamed(model: Model, step_tokens: int) -> None:
    model.step_tokens = step_tokens
    answer = model.ask()
    (choice,) = answer["choices"]
    message = choice["message"]
    assert choice["finish_reason"] == "tool_calls"
    assert message["content"].strip() == "Let me see."
    assert message["reasoning_content"] == message["reasoning"] == "Two cities."
    assert [json.loads(call["function"]["arguments"]) for call in message["tool_calls"]] == ARGUMENTS
    assert {call["function"]["name"] for call in message["tool_calls"]} == {"weather"}
    assert len({call["id"] for call in message["tool_calls"]}) == 2
    details = answer["usage"]["completion_tokens_details"]
    assert 0 < details["reasoning_tokens"] < answer["usage"]["completion_tokens"]

    response = model.post(stream=True, stream_options={"include_usage": True})
    *events, last = data_of(response.text)
    assert last == "[DONE]"
    *documents, usage = [json.loads(each) for each in events]
    assert usage["usage"] == answer["usage"]
    deltas = [event["choices"][0]["delta"] for event in documents]
    assert [delta.get("role") for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    for name in ("content", "reasoning_content", "reasoning"):
        assert "".join(delta.get(name) or "" for delta in deltas) == message[name]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    for index, whole in enumerate(message["tool_calls"]):
        first, *more = [call for call in calls if call["index"] == index]
        assert first["function"]["name"] == whole["function"]["name"]
        assert first["id"].startswith("call_")
        rest = "".join(call["function"]["arguments"] for call in more)
        assert first["function"]["arguments"] + rest == whole["function"]["arguments"]


def test_calls_that_max_tokens_cuts_end_by_length(model: Model) -> None:
    count = len(TOKENIZER.encode(CALLS).ids)
    (choice,) = model.ask(max_tokens=count - 30)["choices"]
    assert choice["finish_reason"] == "length"
    assert choice["message"]["tool_calls"]


def test_each_of_several_texts_has_its_calls(model: Model) -> None:
    choices = model.ask(n=3)["choices"]
    assert [len(choice["message"]["tool_calls"]) for choice in choices] == [2, 2, 2]
    ids = {call["id"] for choice in choices for call in choice["message"]["tool_calls"]}
    assert len(ids) == 6


def test_without_tools_calls_are_text_and_reasoning_is_apart(model: Model) -> None:
    for fields in ({"tools": None}, {"tool_choice": "none"}):
        message = model.ask(**fields)["choices"][0]["message"]
        assert "tool_calls" not in message
        assert message["content"] == CALLS.partition("</think>\n\n")[2]
        assert message["reasoning"] == "Two cities."


def test_all_is_text_where_the_client_asks_for_special_tokens(model: Model) -> None:
    choice = model.ask(skip_special_tokens=False)["choices"][0]
    assert choice["message"] == {"content": CALLS, "role": "assistant"}
    assert choice["finish_reason"] == "stop"


def test_calls_and_results_are_sent_back(model: Model) -> None:
    message = model.ask()["choices"][0]["message"]
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "20"} for call in message["tool_calls"]
    ]
    model.text = "Both are warm."
    answer = model.ask(messages=[*ASKED["messages"], message, *results])
    assert answer["choices"][0]["message"] == {"content": "Both are warm.", "role": "assistant"}
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_schema_that_no_guide_can_follow_is_refused_by_the_field(model: Model) -> None:
    tool = {"name": "weather", "strict": True, "parameters": {"type": "object", "title": "a" * (1 << 18)}}
    response = model.post(tools=[{"type": "function", "function": tool}])
    error = error_of(response)
    assert (response.status_code, error["code"], error["param"]) == (400, "E1105", "tools")
