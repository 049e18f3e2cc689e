"""An error names the field of the request that it is about, by its facts, wherever it was raised."""

import json
import re

import pytest

from errors.api import UnknownField, UnknownModel
from errors.chat import ChatTemplateRefused
from errors.coded_error import CodedError
from errors.requests import InvalidGuide, InvalidInput, InvalidTensor, PromptTooLong, UnsupportedArgument
from errors.wire import WireError
from runner.api.error_response import Fields, error_body

FIELDS = Fields("messages", "structured_outputs.regex")


def answer(error: CodedError) -> tuple[str | None, str]:
    document = json.loads(error_body(error, FIELDS))["error"]
    return document["param"], document["message"]


@pytest.mark.parametrize("travels", [False, True], ids=["raised here", "of another process"])
@pytest.mark.parametrize(
    ("error", "param", "begins"),
    [
        (InvalidInput(name="stop[0]", expected="not empty", value=""), "stop", "stop[0] must be "),
        (
            UnknownField(name="stream_options.x", remedy=""),
            "stream_options",
            "The field stream_options.x is ",
        ),
        (InvalidTensor(name="input_ids", expected="ids", value=5), "messages", "messages must be "),
        (InvalidTensor(name="random_seed", expected="above 0", value=0), "seed", "seed must be "),
        (InvalidTensor(name="min_p", expected="at most 1", value=2), "min_p", "min_p must be "),
        (
            InvalidTensor(name="guided_decoding_guide", expected="given", value=None),
            *("structured_outputs.regex", "guided_decoding_guide must be "),
        ),
        (
            UnsupportedArgument(
                name="guided_decoding_guide_type", value="regex", engine_kind="paced", remedy="leave it out"
            ),
            *("structured_outputs.regex", "structured_outputs.regex is not supported by the paced engine"),
        ),
        (InvalidGuide(guide_type="regex", reason="x"), "structured_outputs.regex", "The regex can't "),
        (PromptTooLong(prompt_tokens=5, max_input_tokens=4), "messages", "Prompt length (5) "),
        (UnknownModel(model="x", served="y"), "model", "The model 'x' is "),
        (ChatTemplateRefused(reason="x"), "messages", ""),
    ],
)
def test_the_field_comes_from_the_facts(error: CodedError, param: str, begins: str, travels: bool) -> None:
    found, message = answer(WireError.of(error).restore() if travels else error)
    assert found == param
    assert message.startswith(begins)


def test_a_name_that_is_no_field_is_not_told_as_one() -> None:
    error = InvalidInput(name="/srv/model.bin", expected="there", value=None)
    assert answer(error)[0] is None


def test_a_sentence_that_only_looks_like_one_about_a_field_names_none() -> None:
    assert answer(InvalidTensor.restore("input_ids must be ids, but is 5.", {}))[0] is None


def test_a_message_is_cut() -> None:
    _, message = answer(InvalidInput(name="stop", expected="short", value="x" * 3000))
    assert len(message) < 1010
    assert re.fullmatch(r"stop must be short, but is 'x+\.\.\.x+'\.", message)
