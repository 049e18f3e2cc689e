"""The generation core on a real engine server: where a text ends, and what is known of it then."""

import asyncio
import weakref
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from msgspec import structs

from engine.directory import load
from errors.requests import InvalidInput, PromptTooLong
from runner.api.generations import Generations, PromptRequest
from runner.engines.protocol.client import EngineClient
from runner.engines.protocol.messages import Sampling
from runner.generation import prompt_ids
from runner.generation.admission import Admission
from runner.generation.generation import Generation
from runner.generation.model import ModelFacts, load_model_facts
from runner.generation.request import GenerationRequest
from runner.generation.tokenizing import Tokenizing
from runner.settings.settings import load_settings
from tests.runner.engines.engine_server import EngineServerUnderTest
from tests.runner.paced_engine import END_TOKEN, MAX_SEQUENCE_LENGTH, PacedModel

QUESTION = "What is machine learning?"
GREEDY = Sampling(temperature=0)


@dataclass(frozen=True)
class Served:
    path: Path
    model: PacedModel
    facts: ModelFacts


@pytest.fixture(scope="module")
def served(paced: PacedModel, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("engine_server")
    server = EngineServerUnderTest("paced", paced.directory, {}, folder)
    facts = load_model_facts(load(paced.directory), load_settings({"HOME": str(folder)}))
    yield Served(server.path, paced, facts)
    server.stop()


@asynccontextmanager
async def connected(served: Served) -> AsyncIterator[EngineClient]:
    async with EngineClient(served.path, 60, "paced") as client:
        while not client.is_ready:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        yield client


def generate(
    served: Served,
    prompt: str = QUESTION,
    *,
    max_tokens: int = 30,
    min_tokens: int = 0,
    stops: tuple[str, ...] = (),
    sampling: Sampling = GREEDY,
    model: ModelFacts | None = None,
) -> tuple[list[str], Generation]:
    request = GenerationRequest(prompt, max_tokens, min_tokens, stops, sampling)

    async def read() -> tuple[list[str], Generation]:
        async with connected(served) as client:
            generation = Generation(request, model or served.facts, client)
            return [text async for text in generation.text()], generation

    return asyncio.run(read())


def test_a_text_comes_in_pieces_and_ends_by_its_length(served: Served) -> None:
    pieces, generation = generate(served, max_tokens=40)
    assert "".join(pieces) == served.model.expected_text(QUESTION, 40)
    assert len(pieces) > 1
    assert all(pieces)
    assert generation.finish_reason == "length"
    assert generation.input_token_count == len(served.model.ids(QUESTION))
    assert generation.output_token_count == 40
    assert generation.time_to_first_token_s is not None
    assert 0 < generation.time_to_first_token_s < generation.duration_s
    assert generation.tokens_per_second == 40 / generation.duration_s


@pytest.mark.parametrize(
    ("prompt", "stops", "text"),
    [
        (QUESTION, ("rning?Wh", "never"), "What is machine lea"),
        (QUESTION, ("is", "What is", ""), ""),
        ("日本語👍です", ("👍で",), "日本語"),
        ("abc", ("cX", "bcY"), None),
    ],
)
def test_a_stop_sequence_cuts_exactly_wherever_tokens_begin(
    served: Served, prompt: str, stops: tuple[str, ...], text: str | None
) -> None:
    whole = served.model.expected_text(prompt, 30)
    pieces, generation = generate(served, prompt, stops=stops)
    assert "".join(pieces) == (whole if text is None else text)
    assert generation.finish_reason == ("length" if text is None else "stop")


@pytest.mark.parametrize("which", [0, 1, 2])
def test_the_first_of_several_end_ids_ends_the_text(served: Served, which: int) -> None:
    prompt = "What is"
    ids = served.model.ids(prompt)
    assert len(set(ids)) == len(ids)
    end_ids = (*(317, 318, 319)[:which], ids[2])
    pieces, generation = generate(served, prompt, model=replace(served.facts, end_ids=end_ids))
    assert "".join(pieces) == served.model.expected_text(prompt, 2)
    assert generation.finish_reason == "end"
    assert generation.output_token_count == 3


def test_the_end_token_itself_ends_the_text_and_has_none(served: Served) -> None:
    pieces, generation = generate(served, f"Once{END_TOKEN}more")
    assert "".join(pieces) == "Once"
    assert generation.finish_reason == "end"


@pytest.mark.parametrize("min_tokens", [2, 3, 4, 8, 9])
def test_an_end_before_the_least_length_is_none(served: Served, min_tokens: int) -> None:
    prompt = "What is"
    ids = served.model.ids(prompt)
    model = replace(served.facts, end_ids=(ids[2],))
    _, generation = generate(served, prompt, min_tokens=min_tokens, model=model)
    ends = range(2, 30, len(ids))
    assert generation.output_token_count == next(end + 1 for end in ends if end >= min_tokens)
    assert generation.finish_reason == "end"


@pytest.mark.parametrize("length", [MAX_SEQUENCE_LENGTH, 2 * MAX_SEQUENCE_LENGTH])
def test_a_prompt_that_leaves_no_room_is_e1002_with_both_numbers(served: Served, length: int) -> None:
    with pytest.raises(PromptTooLong) as raised:
        generate(served, "x" * length)
    assert raised.value.facts["prompt_tokens"] == length
    assert raised.value.facts["max_input_tokens"] == MAX_SEQUENCE_LENGTH - 1


@pytest.mark.parametrize("room", [1, 2, 7])
def test_lengths_are_clipped_to_the_room_that_the_prompt_leaves(served: Served, room: int) -> None:
    prompt = "x" * (MAX_SEQUENCE_LENGTH - room)
    pieces, generation = generate(served, prompt, max_tokens=10**12, min_tokens=10**11)
    assert "".join(pieces) == "x" * room
    assert generation.finish_reason == "length"


def test_a_shorter_input_limit_of_the_engine_holds(served: Served) -> None:
    model = replace(served.facts, max_input_length=5)
    with pytest.raises(PromptTooLong, match=r"\(5\)"):
        generate(served, "x" * 6, model=model)
    pieces, _ = generate(served, "x" * 5, max_tokens=3, model=model)
    assert "".join(pieces) == "xxx"


class Text(str):
    """A prompt that can be watched."""


async def test_a_prompt_that_was_sent_is_not_kept(served: Served) -> None:
    prompt = Text(QUESTION)
    watch = weakref.ref(prompt)

    async with connected(served) as client:
        generation = Generation(GenerationRequest(prompt, 30, 0, (), GREEDY), served.facts, Admission(client))
        del prompt
        async with aclosing(generation.text()) as texts:
            await anext(texts)
            assert watch() is None


async def test_all_texts_of_a_call_have_a_limited_number_of_prompt_tokens(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However they are divided among prompts and n; one text may have more."""
    monkeypatch.setattr(prompt_ids, "_MOST_PROMPT_TOKENS", 50)

    async def read(*prompts: tuple[int, int]) -> int:
        first = GenerationRequest([5] * prompts[0][0], 3, 0, (), GREEDY)
        requests = [
            PromptRequest(structs.replace(first, prompt=[5] * size), count) for size, count in prompts
        ]
        async with connected(served) as client:
            generations = Generations()
            await generations.add(requests, lambda each: Generation(each, served.facts, client))
            async with aclosing(generations.batches()) as batches:
                ended = [piece async for batch in batches for piece in batch if piece.finish_reason]
            return len(ended)

    assert await read((60, 1)) == 1
    assert await read((10, 5)) == 5
    assert await read((10, 2), (30, 1)) == 3
    for prompts in [((10, 6),), ((10, 2), (31, 1)), ((1, 1),) * 51, ((60, 2),)]:
        with pytest.raises(InvalidInput, match=r"E1005.*prompt must be of at most 50 tokens in all"):
            await read(*prompts)


async def test_others_have_their_turn_between_the_texts_of_a_call(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is tokenized in the event loop."""
    turn = 0
    tokenized_at: list[int] = []

    def tokenize(self: Tokenizing, text: str, *, adds_special_tokens: bool) -> list[int]:
        tokenized_at.append(turn)
        return [5]

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    monkeypatch.setattr(Tokenizing, "encode_short", tokenize)
    async with connected(served) as client:
        first = GenerationRequest("", 1, 0, (), GREEDY)
        requests = [PromptRequest(structs.replace(first, prompt=f"text {number}"), 1) for number in range(40)]
        generations = Generations()
        await generations.add(requests, lambda each: Generation(each, served.facts, client))
        other = asyncio.create_task(count_turns())
        async with aclosing(generations.batches()) as batches:
            await anext(batches)
        other.cancel()
    assert len(tokenized_at) == len(set(tokenized_at)) == 40
