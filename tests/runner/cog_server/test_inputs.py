"""Wrong inputs of every kind are answered by 422 or by a coded error, and the server serves on."""

import inspect
from typing import Any

import pytest

from runner.run import Runner
from tests.runner.servers import CogUnderTest

pytestmark = pytest.mark.servers

QUESTION = "What is machine learning?"


def serves_on(cog: CogUnderTest) -> bool:
    prediction = cog.predict(prompt=QUESTION, max_tokens=3)
    return "".join(prediction["output"]) == cog.model.expected_text(QUESTION, 3)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("prompt", 5),
        ("max_tokens", 0),
        ("stop_sequences", ["a", "b"]),
        ("log_performance_metrics", "yes"),
    ],
)
def test_an_input_of_the_wrong_type_or_beyond_its_limits_is_422_with_its_name(
    cog: CogUnderTest, name: str, value: object
) -> None:
    response = cog.client.post("/predictions", json={"input": {"prompt": QUESTION, name: value}})
    assert response.status_code == 422
    assert response.json()["detail"][0]["loc"] == ["body", "input", name]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prompt": " \n"}, "E1001 PromptRequired: A prompt is required, but your formatted prompt is blank"),
    ({"prompt": "x" * 5000}, "E1002 PromptTooLong: Prompt length (5000) exceeds maximum input length (4095)"),
    ({"prompt_template": "Answer:"}, "E1003 BadPromptTemplate: You have submitted both a prompt"),
    ({"prompt_template": '{"json": 1}'}, "E1004 PromptTemplateError: Prompt template must be a valid"),
    ({"min_tokens": 3, "min_new_tokens": 4}, "E1101 InvalidArgumentMinTokens: Can't set both min_tokens (3)"),
    ({"max_tokens": 3, "max_new_tokens": 4}, "E1102 InvalidArgumentMaxTokens: Can't set both max_tokens (3)"),
    ({"prompt": None}, "E1703 PromptOrMessages: Send either prompt or messages, as there is neither"),
    ({"messages": "[]"}, "E1703 PromptOrMessages: Send either prompt or messages, not both"),
    ({"prompt": None, "messages": "["}, "E1005 InvalidInput: messages must be JSON"),
    ({"prompt": None, "messages": "[]"}, "E1005 InvalidInput: messages must be a list of at least one"),
    ({"prompt": None, "messages": '[{"role": "x", "content": "y"}]', "prompt_template": "{prompt}"},
     "E1005 InvalidInput: prompt_template must be left out"),
    ({"presence_penalty": 1e300}, "E1103 InvalidTensor: presence_penalty must be a finite number"),
    ({"length_penalty": 5}, "E1104 UnsupportedArgument: len_penalty=5.0 is not supported"),
]  # fmt: skip


def test_what_the_schema_can_not_see_is_a_coded_error_without_a_traceback(cog: CogUnderTest) -> None:
    for inputs, says in REFUSED:
        prediction = cog.predict(**{"prompt": QUESTION, "max_new_tokens": 3, **inputs})
        assert prediction["status"] == "failed"
        assert says in prediction["error"]
        assert not prediction["error"].endswith(("\n", '"}'))
    assert serves_on(cog)
    assert "E1002" in cog.log()
    assert "Traceback" not in cog.log()


@pytest.mark.parametrize(
    "inputs",
    [
        dict.fromkeys(inspect.signature(Runner.run).parameters.keys() - {"self"}),  # As if not sent.
        {"min_tokens": 2.0, "top_k": 4.0, "seed": 5.0, "max_tokens": 3.0, "max_new_tokens": None},
        {"temperature": 5, "top_p": 1, "top_k": -1, "repetition_penalty": 0.01, "unheard_of": 1},
        {"top_p": 0, "top_k": 0, "min_tokens": -1, "temperature": 0},
        {"top_k": 2**40, "seed": 2**70, "presence_penalty": -100, "min_tokens": 10**15},
    ],
)
def test_nulls_whole_floats_and_limits_are_taken_and_unknown_inputs_ignored(
    cog: CogUnderTest, inputs: dict[str, Any]
) -> None:
    count = {} if inputs.get("max_tokens") else {"max_new_tokens": 3}
    prediction = cog.predict(**{**inputs, **count, "prompt": QUESTION})
    assert prediction["status"] == "succeeded", prediction
    assert "".join(prediction["output"]) == cog.model.expected_text(QUESTION, 3)


def test_an_unknown_input_is_dropped_by_cog_which_logs_its_name(cog: CogUnderTest) -> None:
    prediction = cog.predict(promt="x")
    assert "E1703" in prediction["error"]
    assert "Cog drops inputs of other names" in prediction["error"]
    lines = [line for line in cog.log().splitlines() if "Stripped unknown input fields" in line]
    assert [line for line in lines if "promt" in line and prediction["id"] in line]
