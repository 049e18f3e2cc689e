"""A generation with an answer form yields parts: stop sequences, log probabilities, counts."""

import asyncio
import time
from dataclasses import replace

import msgspec
import pytest

from runner.api.generations import Generations, Piece, PromptRequest
from runner.chat.families.family import AnswerForm
from runner.chat.families.recognition import FAMILIES
from runner.generation.generation import Generation
from tests import fast
from tests.runner.chat.families.answers import (
    Call,
    Message,
    Writer,
    decoder,
    message_of,
    read,
    tokenizer_with,
    tool_use,
)
from tests.runner.chat.families.forms import FORMS
from tests.runner.generation.outputs import in_chunks, model_of, request_of

TOKENIZER = tokenizer_with(("<|im_end|>",), ("<tool_call>", "</tool_call>", "<think>", "</think>"))
MODEL = model_of(TOKENIZER, family=FAMILIES["hermes"])
FORM = AnswerForm(FAMILIES["hermes"], tool_use(f={}))


def answer() -> list[int]:
    writer = Writer(TOKENIZER).marker("<think>").text("so, ab").marker("</think>").text("hi ab")
    return writer.marker("<tool_call>").text('{"name": "f", "arguments": {"x": "ab"}}').ids


def generate(
    chunks: list[list[int]], *stops: str, has_log_probs: bool = False, form: AnswerForm | None = FORM
) -> tuple[Message, Generation, str]:
    top = 0 if has_log_probs else None
    request = request_of(max_tokens=4000, stop_sequences=stops, num_top_log_probs=top, answer=form)

    async def run() -> tuple[Message, Generation, str]:
        generations = Generations()
        generation = Generation(request, MODEL, in_chunks(chunks))
        await generations.add([PromptRequest(request, 1)], lambda _: generation)
        pieces: list[Piece] = [piece async for batch in generations.batches() for piece in batch]
        assert not any(piece.text for piece in pieces) or form is None
        assert pieces[-1].finish_reason == generation.finish_reason
        assert (generations.reasoning_tokens or 0) == generation.reasoning_token_count
        parts = [part for piece in pieces for part in piece.parts]
        reported = [each.token_id for piece in pieces for each in piece.log_probs]
        return message_of(parts), generation, TOKENIZER.decode(reported)

    return asyncio.run(run())


def every_cut(ids: list[int]) -> list[list[list[int]]]:
    return [[[each] for each in ids], *([ids[:cut], ids[cut:]] for cut in range(len(ids)))]


def test_the_parts_and_the_tokens_of_reasoning() -> None:
    for chunks in every_cut(answer()):
        message, generation, _ = generate(chunks)
        assert message == Message("hi ab", "so, ab", [Call("f", '{"x": "ab"}')])
        assert generation.has_parts
        assert generation.reasoning_token_count == len("so, ab")
        assert generation.finish_reason == "length"


@pytest.mark.parametrize(
    ("stops", "message", "reason"),
    [
        (("i a",), Message("h", "so, ab"), "stop"),
        (("ab", "zz"), Message("hi ", "so, ab"), "stop"),
        (("b<",), Message("hi ab", "so, ab", [Call("f", '{"x": "ab"}')]), "length"),
        (('"x"', "so", "</think>"), Message("hi ab", "so, ab", [Call("f", '{"x": "ab"}')]), "length"),
    ],
)
def test_stop_sequences_apply_to_the_content_alone(
    stops: tuple[str, ...], message: Message, reason: str
) -> None:
    for chunks in every_cut(answer()):
        found, generation, _ = generate(chunks, *stops)
        assert (found, generation.finish_reason) == (message, reason)
        assert generation.stop_sequence == (stops[0] if reason == "stop" else None)


def test_a_special_token_stops_an_answer_wherever_it_is() -> None:
    ids, special = answer(), TOKENIZER.token_to_id("<|im_end|>")
    for at in (2, len(ids) - 3):
        with_special = [*ids[:at], special, *ids[at:]]
        for chunks in every_cut(with_special):
            found, generation, _ = generate(chunks, "<|im_end|>")
            assert found == generate([ids[:at]])[0]
            assert (generation.finish_reason, generation.stop_sequence) == ("stop", "<|im_end|>")
    content = [*Writer(TOKENIZER).text("a").ids, special, *Writer(TOKENIZER).text("b").ids]
    for chunks in every_cut(content):
        assert generate(chunks, "a<|im_end|>b")[0] == Message()
        assert generate(chunks, "b<|im_end|>")[0] == Message("ab")


def test_log_probabilities_are_those_of_the_content() -> None:
    for chunks in every_cut(answer()):
        assert generate(chunks, has_log_probs=True)[2] == "hi ab"
    ids = Writer(TOKENIZER).text("a").marker("<tool_call>").text("b").ids
    assert generate([ids], has_log_probs=True)[0] == Message("a<tool_call>b")
    assert generate([ids], "zz", "b", has_log_probs=True)[0] == Message("a<tool_call>")


def test_without_a_form_there_are_no_parts() -> None:
    message, generation, _ = generate([answer()], form=None)
    assert message == Message()
    assert not generation.has_parts
    assert generation.reasoning_token_count == 0


def test_without_tools_calls_are_text() -> None:
    message, _, _ = generate([answer()], form=AnswerForm(FAMILIES["hermes"]))
    assert message == Message('hi ab<tool_call>{"name": "f", "arguments": {"x": "ab"}}', "so, ab")


@pytest.mark.parametrize(
    "name", fast.few(["hermes", "hermes, markers as text", "qwen3-coder", "llama3", "llama4", "phi4"])
)
def test_the_time_grows_with_the_length_alone(name: str) -> None:
    """Texts that look like markers, calls without an end, brackets without number."""
    form = FORMS[name]
    tokenizer = tokenizer_with(form.special, form.added)
    begin = form.family.calls.begins[0]
    beginnings = [("", "<"), ("", "<tool_call"), ("", "[f(a="), ("", "functools["), ("", " \n")]
    beginnings += [("", "{"), (begin, '{"name":'), (begin, '{"arguments": {"a": ['), (begin, "[" * 3)]
    for marker, text in beginnings:
        times = []
        for count in (1_000, 4_000):
            writer = Writer(tokenizer).marker(marker).text(text * count)
            chunks = [[each] for each in writer.ids[: 4 * count]]
            started_s = time.process_time()
            read(decoder(form.family, tokenizer, tools=FORM.tools), chunks)
            times.append(time.process_time() - started_s)
        assert times[1] < 12 * times[0] + 0.05, (marker, text, times)


def test_the_time_of_an_answer_at_once_grows_with_its_length_alone() -> None:
    form = FORMS["deepseek-v4"]
    tokenizer = tokenizer_with(form.special, form.added)
    times = []
    for count in (2_000, 16_000):
        text = "".join(f'<｜DSML｜parameter name="p{each}">a\n' for each in range(count))
        ids = Writer(tokenizer).text(f'<｜DSML｜invoke name="f">{text}').ids
        started_s = time.process_time()
        (call,) = message_of(read(decoder(form.family, tokenizer, tools=tool_use(f={})), [ids])).calls
        times.append(time.process_time() - started_s)
        assert call.arguments.count(":") == count
    assert times[1] < 14 * times[0] + 0.05, times


ONE_CALL = AnswerForm(FAMILIES["hermes"], msgspec.structs.replace(tool_use(f={}), is_parallel=False))


@pytest.mark.parametrize(
    ("form", "stops", "ignores_end", "expected"),
    [
        (None, (), False, [7, 8]),
        (FORM, (), False, [7, 8]),
        (None, (), True, []),
        (None, ("ab",), False, None),
        (FORM, ("ab",), False, None),
        (ONE_CALL, (), False, None),
    ],
)
@pytest.mark.parametrize("is_whole", [False, True])
async def test_tokens_of_a_whole_text_are_collected_unless_it_may_end_before_the_engine_ends_it(
    form: AnswerForm | None,
    stops: tuple[str, ...],
    ignores_end: bool,
    expected: list[int] | None,
    is_whole: bool,
) -> None:
    source = in_chunks([])
    model = replace(MODEL, end_ids=(7, 8))
    request = request_of(stop_sequences=stops, answer=form, ignores_end=ignores_end)

    generation = Generation(request, model, source, is_whole=is_whole)
    async for _ in generation.parts() if form else generation.text():
        pass
    until = source.submit.collects_until
    assert (None if until is None else sorted(until)) == (expected if is_whole else None)
