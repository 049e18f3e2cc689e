"""The error codes: published ones keep their words, each is there once, each survives as text."""

import importlib
import pkgutil
import re
import string

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import errors
from errors import BY_CODE, find_in_text, markdown_table
from errors.coded_error import CodedError
from errors.requests import PromptTooLong
from errors.settings import InvalidSetting
from errors.wire import WireError

ENCODINGS = [(msgspec.msgpack.encode, msgspec.msgpack.decode), (msgspec.json.encode, msgspec.json.decode)]

PUBLISHED = {
    "E1000 GenericError": "Generic user error (reserved)",
    "E1001 PromptRequired": "A prompt is required, but your formatted prompt is blank",
    "E1002 PromptTooLong": "Prompt length exceeds maximum input length.",
    "E1003 BadPromptTemplate": (
        "You have submitted both a prompt and a prompt template that doesn't include '{prompt}'."
    ),
    "E1004 PromptTemplateError": "Prompt template must be a valid python format spec",
    "E1101 InvalidArgumentMinTokens": (
        "Can't set both min_tokens ({min_tokens}) and min_new_tokens ({min_new_tokens})"
    ),
    "E1102 InvalidArgumentMaxTokens": (
        "Can't set both max_tokens ({max_tokens}) and max_new_tokens ({max_new_tokens})"
    ),
    "E2100 TritonUnknownError": "Unknown error",
    "E2101 TritonTimeout": "Triton timed out after {TRITON_TIMEOUT}s: httpx.ReadTimeout.",
    "E2102 TritonTokenizerError": (
        "Tokenizer error: ... the first token of the stop sequence IDs was not '!', which suggests there is "
        "a problem with the tokenizer that you are using."
    ),
    "E2103 TritonMalformedJSON": "Triton returned malformed JSON",
    "E2104 TritonMalformedEvent": "Triton returned malformed event (no output_ids or error key)",
}
"""What callers of cog-triton have been reading since 2024."""


def test_published_codes_keep_their_name_and_sentence() -> None:
    for code_and_name, summary in PUBLISHED.items():
        code, name = code_and_name.split()
        assert BY_CODE[code].__name__ == name
        assert BY_CODE[code].summary == summary


def test_every_code_and_name_of_every_class_is_its_own() -> None:
    classes = all_classes()
    codes, names = [each.code for each in classes], [each.__name__ for each in classes]
    assert len(classes) > len(PUBLISHED)
    assert sorted(codes) == sorted(set(codes)) == sorted(BY_CODE)
    assert sorted(names) == sorted(set(names))


def test_the_docstring_has_the_subcategories_of_each_module() -> None:
    told = {
        f"errors.{module}": set(codes.split(", "))
        for module, codes in re.findall(r"^ {4}(\w+) +(\d\d(?:, \d\d)*) ", str(errors.__doc__), re.MULTILINE)
    }
    found: dict[str, set[str]] = {}
    for code, error in BY_CODE.items():
        found.setdefault(error.__module__, set()).add(code[1:3])
    assert told == found


@pytest.mark.parametrize("error", BY_CODE.values(), ids=lambda each: each.code)
def test_every_error_says_something_and_is_found_again_in_another_process_text(
    error: type[CodedError],
) -> None:
    assert re.fullmatch(r"E[12]\d{3}", error.code)
    assert error.summary
    assert "|" not in error.summary, "it would break the table"
    raised = raised_with_numbers(error)
    text = str(raised)
    assert text == f"{error.code} {error.__name__}: {raised.sentence}"
    found = find_in_text(f"[StatusCode.INTERNAL] in ensemble, {text}")
    assert type(found) is error
    assert str(found) == text
    arrived = sent(raised)
    assert type(arrived) is error
    assert str(arrived) == text
    assert set(arrived.facts) == set(raised.facts)


@given(st.text(), st.text())
def test_any_value_may_stand_in_an_error(name: str, value: str) -> None:
    error = InvalidSetting(name=name, expected="{braces}", value=value)
    assert repr(value) in error.sentence
    assert str(find_in_text(str(error))) == str(error)
    assert find_in_text(f"{value} E1999 Nobody: knows this, nor what E2100 is") is None


def test_the_table_has_one_row_for_each_code_in_order() -> None:
    rows = markdown_table().splitlines()[2:]
    assert [row.split(" | ")[0].removeprefix("| ") for row in rows] == sorted(BY_CODE)


def sent(error: CodedError) -> CodedError:
    for encode, decode in ENCODINGS:
        error = decode(encode(WireError.of(error)), type=WireError).restore()
    return error


def all_classes() -> list[type[CodedError]]:
    """Every class that any module of ours defines, whether the table knows it or not."""
    names = [
        each.name for each in pkgutil.iter_modules(errors.__path__, "errors.") if "__main__" not in each.name
    ]
    modules = map(importlib.import_module, names)
    found = {
        each
        for module in modules
        for each in vars(module).values()
        if isinstance(each, type) and issubclass(each, CodedError) and each is not CodedError
    }
    return sorted(found, key=lambda each: each.code)


def raised_with_numbers(error: type[CodedError]) -> CodedError:
    if error is PromptTooLong:
        return PromptTooLong(prompt_tokens=2, max_input_tokens=1)
    fields = {field for _, field, _, _ in string.Formatter().parse(error.template) if field}
    return error(**dict.fromkeys(fields, 7))
