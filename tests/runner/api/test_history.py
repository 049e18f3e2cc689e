"""What the server answered goes back in as it is, by each API, whatever the model's template needs."""

from typing import Any

import pytest

from tests import fast
from tests.runner.api.writing_model import CALLS, WritingModel
from tests.runner.chat.test_turns import TEMPLATES

ANSWERS = {
    "calls": CALLS,
    "a call that was cut": CALLS[: CALLS.index("aris")],
    "calls alone": CALLS[CALLS.index("<tool_call>") :],
    "reasoning alone": "<think>\nTwo cities.",
    "nothing": "",
}
ASKED = {"role": "user", "content": "Where is it warm?"}
FURTHER = {"role": "user", "content": "Go on."}
FUNCTION = {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}


@pytest.fixture(scope="module", params=fast.few(["STRICT", "NULL_BESIDE_CALLS", "ANY_ROLE"], 1))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> WritingModel:
    return WritingModel(tmp_path_factory.mktemp("model"), TEMPLATES[request.param])


def test_by_chat_completions(model: WritingModel, answer: str) -> None:
    body: dict[str, Any] = {"tools": [{"type": "function", "function": FUNCTION}]}
    model.text = ANSWERS[answer]
    for include_reasoning in (True, False):
        first = model.ask(
            "/v1/chat/completions", messages=[ASKED], include_reasoning=include_reasoning, **body
        )
        message = first["choices"][0]["message"]
        results = [_result(call["id"]) for call in message.get("tool_calls", ())]
        for rest in ([], [FURTHER]):
            model.ask("/v1/chat/completions", messages=[ASKED, message, *results, *rest], **body)


def test_by_responses(model: WritingModel, answer: str) -> None:
    body: dict[str, Any] = {"tools": [{"type": "function", **FUNCTION}]}
    model.text = ANSWERS[answer]
    items = model.ask("/v1/responses", input=[ASKED], **body)["output"]
    results = [
        {"type": "function_call_output", "call_id": each["call_id"], "output": "20"}
        for each in items
        if each["type"] == "function_call"
    ]
    for rest in ([], [{"role": "developer", "content": "Be brief."}, FURTHER]):
        model.ask("/v1/responses", input=[ASKED, *items, *results, *rest], **body)


def test_by_messages(model: WritingModel, answer: str) -> None:
    schema = {"name": FUNCTION["name"], "input_schema": FUNCTION["parameters"]}
    body: dict[str, Any] = {"max_tokens": 400, "tools": [schema]}
    model.text = ANSWERS[answer]
    content = model.ask("/v1/messages", messages=[ASKED], **body)["content"]
    results = [
        {"type": "tool_result", "tool_use_id": each["id"], "content": "20"}
        for each in content
        if each["type"] == "tool_use"
    ]
    further = [*results, {"type": "text", "text": "Go on."}]
    for rest in (results or further, further):
        turns = [ASKED, {"role": "assistant", "content": content}, {"role": "user", "content": rest}]
        model.ask("/v1/messages", messages=turns, **body)


@pytest.fixture(params=ANSWERS)
def answer(request: pytest.FixtureRequest) -> str:
    return request.param


def _result(call_id: str) -> dict[str, str]:
    return {"role": "tool", "tool_call_id": call_id, "content": "20"}
