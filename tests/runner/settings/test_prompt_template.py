"""Prompt, system prompt and template become a text, or one of the four published errors."""

import tracemalloc

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from errors.coded_error import CodedError
from errors.requests import BadPromptTemplate, PromptRequired, PromptTemplateError, PromptTooLong
from runner.settings.prompt_template import format_prompt
from tests import fast

TEMPLATE_PIECES = st.lists(
    st.one_of(
        st.sampled_from(["{prompt}", "{system_prompt}", "{{", "}}", "{", "}", "{}", "!r", ":>5", "[0]", "."]),
        st.text(max_size=5),
    ),
    max_size=8,
).map("".join)


WRONG = (
    *("{prompt", "prompt}", "{prompt} {", "{prompt} }", "{prompt} {}", "{prompt} {0}", "{prompt} {name}"),
    *("{prompt} { prompt }", '{prompt} {"json": 1}', "{prompt.__class__}", "{prompt.__class__.__mro__}"),
    *("{prompt[0]}", "{prompt!r}", "{prompt!x}", "{prompt!}", "{prompt:>1000000000}", "{!r}"),
    *("{prompt:{system_prompt}}", "{prompt:{prompt.__class__}}", "{{prompt}", "{prompt[}"),
)


def test_the_template_is_filled() -> None:
    filled = {
        "<<{system_prompt}>> {prompt}": "<<Be brief.>> Hi",
        '{{"a": "{prompt}"}}': '{"a": "Hi"}',  # Doubled braces mean themselves.
        "{prompt} {prompt}": "Hi Hi",
    }
    for template, text in filled.items():
        assert format_prompt(template, prompt="Hi", system_prompt="Be brief.") == text
    assert format_prompt("Once upon a time", prompt="", system_prompt="") == "Once upon a time"


def test_a_prompt_without_its_field_in_the_template_is_e1003() -> None:
    for template in ("Answer:", "{system_prompt}", "{{prompt}}"):
        with pytest.raises(BadPromptTemplate, match="E1003"):
            format_prompt(template, prompt="Hi", system_prompt="Be brief.")


def test_a_template_that_is_more_or_less_than_the_two_fields_is_e1004() -> None:
    for template in WRONG:
        with pytest.raises(PromptTemplateError, match=r"E1004.*submit your prompt as `prompt_template`"):
            format_prompt(template, prompt="Hi", system_prompt="Be brief.")


def test_a_blank_prompt_is_e1001() -> None:
    for prompt in ("", " ", "\n\t", "\u3000"):
        with pytest.raises(PromptRequired, match="E1001"):
            format_prompt("{prompt}", prompt=prompt, system_prompt="")


@given(st.text(), st.text())
@example("{", "}")
@example("{system_prompt}{}{0}{{x}} %s", "secret")
def test_any_prompt_arrives_as_it_is(prompt: str, system_prompt: str) -> None:
    text = format_prompt(
        "system: {system_prompt}\nuser: {prompt}", prompt=prompt, system_prompt=system_prompt
    )
    assert text == f"system: {system_prompt}\nuser: {prompt}"


@given(TEMPLATE_PIECES, st.text(min_size=1))
@example("{prompt:{prompt}}", "x")
def test_any_template_gives_a_text_with_the_prompt_or_a_coded_error(template: str, prompt: str) -> None:
    code = ""
    try:
        text = format_prompt(template, prompt=prompt, system_prompt="s")
    except CodedError as error:
        code = error.code
        text = prompt
    assert code in ("", "E1001", "E1003", "E1004")
    assert prompt in text


@pytest.mark.parametrize(
    ("template", "prompt", "system_prompt"),
    fast.few(
        [
            ("{prompt}" * 8000, "a" * 20_000, ""),
            ("{prompt}" * 2_000_000, "a", ""),
            ("{prompt}{system_prompt}" * 8000, "a", "a" * 20_000),
            ("{prompt}" * 400_000, "é" * 50, ""),
            ("{{" * 50_000_000, "", ""),
            ("{prompt}", "a" * 100_000_000, ""),
            ("{prompt}", "é" * 50_000_000, ""),
            ("{prompt}", "a", "a" * 100_000_000),
        ]
    ),
    ids=lambda value: str(len(value)),
)
def test_what_would_be_too_long_is_refused_before_it_is_formatted(
    template: str, prompt: str, system_prompt: str
) -> None:
    tracemalloc.start()
    with pytest.raises(PromptTooLong, match=r"E1002.*bytes.*MAX_PROMPT_BYTES"):
        format_prompt(template, prompt=prompt, system_prompt=system_prompt, max_bytes=1 << 22)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@pytest.mark.parametrize("template", ["{" + "a" * 4_000_000 + "}", "{prompt" * 500_000])
def test_a_large_wrong_template_makes_a_short_message(template: str) -> None:
    with pytest.raises(PromptTemplateError) as raised:
        format_prompt(template, prompt="a", system_prompt="", max_bytes=1 << 22)
    assert len(str(raised.value)) < 4200


def test_a_prompt_of_128k_tokens_is_formatted() -> None:
    prompt = "a" * 600_000
    assert format_prompt("{prompt}", prompt=prompt, system_prompt="", max_bytes=1 << 22) == prompt
