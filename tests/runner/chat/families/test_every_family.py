"""Generated answers of each family, cut into steps in every way, give the same message."""

import json
import os
import random
from collections.abc import Iterator
from functools import partial

import pytest

from runner.generation.parts_decoder import PartsDecoder
from tests import fast
from tests.runner.chat.families.answers import (
    Message,
    Writer,
    decoder,
    message_of,
    read,
    read_in_all_ways,
    tokenizer_with,
    tool_use,
)
from tests.runner.chat.families.forms import FORMS, Form
from tests.runner.chat.families.random_messages import SCHEMA, random_wanted
from tests.runner.chat.families.writing import Wanted, dumps, raw

TOOLS = tool_use(get_weather=SCHEMA, f=SCHEMA)
NUM_ANSWERS = int(os.environ.get("NUM_ANSWERS", "30"))
"""Number of answers of each test. Thousands take minutes."""


def answers(name: str, rng: random.Random) -> Iterator[tuple[Wanted, list[int]]]:
    """Yield random messages, and the tokens that a model of the form writes for each."""
    form = FORMS[name]
    for _ in range(fast.num_examples(NUM_ANSWERS)):
        wanted = random_wanted(form, rng)
        writer = Writer(tokenizer_with(form.special, form.added))
        form.write(writer, wanted)
        yield wanted, writer.ids


def made(form: Form, *stops: str) -> PartsDecoder:
    return decoder(form.family, tokenizer_with(form.special, form.added), tools=TOOLS, stops=stops)


def whole_message(form: Form, ids: list[int]) -> Message:
    return message_of(read(made(form), [ids]))


@pytest.mark.parametrize("name", FORMS)
def test_a_message_is_read_as_it_was_meant(name: str) -> None:
    form, rng = FORMS[name], random.Random(name)
    for wanted, ids in answers(name, rng):
        message = read_in_all_ways(partial(made, form), ids, rng)
        assert (message.content.rstrip("\n"), message.reasoning) == (wanted.content, wanted.reasoning)
        assert [call.name for call in message.calls] == [called for called, _ in wanted.calls]
        for call, (called, arguments) in zip(message.calls, wanted.calls, strict=True):
            if not form.has_types and called == "unknown.tool":
                arguments = {key: raw(value) for key, value in arguments.items()}
            assert json.loads(call.arguments) == arguments
            assert not form.keeps_text or call.arguments == dumps(arguments)


@pytest.mark.parametrize("name", FORMS)
def test_an_interrupted_message_is_its_beginning(name: str) -> None:
    form, rng = FORMS[name], random.Random(name)
    for _, ids in answers(name, rng):
        whole = whole_message(form, ids)
        message = read_in_all_ways(partial(made, form), ids[: rng.randint(0, len(ids))], rng)
        if not form.has_text_markers:
            assert whole.reasoning.startswith(message.reasoning.rstrip("�"))
            assert whole.content.startswith(message.content.rstrip("�")) or form.family.calls.bare
        for call, meant in zip(message.calls, whole.calls, strict=False):
            assert call.name == meant.name
            assert meant.arguments.startswith(call.arguments.rstrip("�"))


@pytest.mark.parametrize("name", FORMS)
def test_a_stop_sequence_ends_the_content_where_it_stands(name: str) -> None:
    form, rng = FORMS[name], random.Random(name)
    for wanted, ids in answers(name, rng):
        whole = whole_message(form, ids)
        at = rng.randrange(len(wanted.content) + 1)
        stop = wanted.content[at : at + rng.randint(1, 4)] or "never"
        message = read_in_all_ways(partial(made, form, stop), ids, rng)
        assert message.content == whole.content.partition(stop)[0]
        assert message.calls == whole.calls[: len(message.calls)]
        assert message.calls == whole.calls or stop in whole.content


@pytest.mark.parametrize("name", FORMS)
def test_a_damaged_message_is_the_same_however_it_arrives(name: str) -> None:
    form, rng = FORMS[name], random.Random(name)
    tokens = [*tokenizer_with(form.special, form.added).get_added_tokens_decoder()]
    for _, ids in answers(name, rng):
        for _ in range(rng.randint(1, 3)):
            at = rng.randrange(len(ids) + 1)
            ids[at : at + rng.randint(0, 3)] = rng.choices([*tokens, *ids, 0], k=rng.randint(0, 2))
        read_in_all_ways(partial(made, form), ids, rng)
