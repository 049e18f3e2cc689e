"""Log probabilities of a generation: one for each token of the text."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from engine.directory import load
from runner.api.generations import Piece
from runner.api.openai.answers import ChatChunkChoice
from runner.api.openai.formats import ChatFormat, TokenTexts
from runner.chat.template import ChatTemplate
from runner.engines.protocol.messages import Output, Sampling, TokenLogProb
from runner.generation.generation import Generation
from runner.generation.model import ModelFacts, load_model_facts
from runner.generation.request import GenerationRequest
from runner.generation.text_decoder import ReportedToken
from runner.generation.tokenizing import Tokenizing
from runner.settings.settings import load_settings
from tests.runner.detokenizer.test_detokenizer import KINDS
from tests.runner.generation.outputs import Source
from tests.runner.paced_engine import make_paced_model, make_tokenizer

TOKENIZER = make_tokenizer()


def generate(folder: Path, *outputs: Output) -> tuple[str, list[float]]:
    """Return the text, and the values that came with it."""
    engine = make_paced_model(folder, 0)
    model = load_model_facts(load(engine.directory), load_settings({"HOME": str(folder)}))
    request = GenerationRequest("What is", 9, 0, (), Sampling(), num_top_log_probs=0)

    async def read() -> tuple[str, list[float]]:
        generation = Generation(request, model, Source(*outputs))
        text = "".join([text async for text in generation.text()])
        return text, [each.log_prob.value for each in generation.take_log_probs()]

    return asyncio.run(read())


def test_each_token_has_its_value(tmp_path: Path) -> None:
    first = Output([40, 41], [TokenLogProb(-1.0), TokenLogProb(-2.0)])
    text, values = generate(tmp_path, first, Output([42], [TokenLogProb(-3.0)], "length"))
    assert len(text) == 3
    assert values == [-1.0, -2.0, -3.0]


@pytest.mark.parametrize("begins_turn", [True, False])
@pytest.mark.parametrize("kind", ["byte_level", "llama", "unigram_metaspace"])
def test_the_texts_of_the_tokens_are_the_text(kind: str, begins_turn: bool) -> None:
    """Also where the first one loses its space."""
    tokenizer = KINDS[kind]()
    prompt = tokenizer.encode("The fox").ids
    output = tokenizer.encode("The fox do not").ids[len(prompt) :]
    tokenizing = Tokenizing(tokenizer, max_bytes=1000, max_tokens=63)
    model = ModelFacts(tokenizing, (2,), 2, 64, 63, ChatTemplate({}, {}))
    request = GenerationRequest(prompt, 60, 0, (), Sampling(), num_top_log_probs=1, begins_turn=begins_turn)
    log_probs = [TokenLogProb(-1.0, [(each, -1.0)]) for each in output]

    async def read() -> tuple[str, list[ReportedToken]]:
        generation = Generation(request, model, Source(Output(output, log_probs, "length")))
        text = "".join([text async for text in generation.text()])
        return text, generation.take_log_probs()

    text, tokens = asyncio.run(read())
    assert text == (" do not" if not begins_turn or kind == "byte_level" else "do not")
    piece = Piece(0, text, "length", tokens)
    (chat,) = ChatFormat(TokenTexts(tokenizer)).events(piece)
    assert isinstance(chat, ChatChunkChoice)
    assert chat.logprobs is not None
    assert "".join(each.token for each in chat.logprobs.content) == text
    assert bytes(byte for each in chat.logprobs.content for byte in each.bytes).decode() == text
    assert all(each.top_logprobs[0].token == each.token for each in chat.logprobs.content)


def reported(text: str, size: int, *stops: str) -> tuple[str, list[int]]:
    """Return the text of ``text``'s tokens, ``size`` at a time, and their offsets.

    None precedes what it counts.
    """
    ids = TOKENIZER.encode(text).ids
    chunks = [ids[at : at + size] for at in range(0, len(ids), size)]
    outputs = [Output(chunk, [TokenLogProb(-1.0) for _ in chunk]) for chunk in chunks]
    model = ModelFacts(
        Tokenizing(TOKENIZER, max_bytes=1000, max_tokens=63), (0,), 0, 64, 63, ChatTemplate({}, {})
    )
    request = GenerationRequest("hi", 60, 0, stops, Sampling(), num_top_log_probs=0)

    async def read() -> tuple[str, list[int]]:
        generation = Generation(request, model, Source(*outputs, Output([], [], "length")))
        shown, offsets = "", []
        async for piece in generation.text():
            shown += piece
            offsets += [each.offset for each in generation.take_log_probs()]
            assert max(offsets, default=0) <= len(shown)
        return shown, offsets + [each.offset for each in generation.take_log_probs()]

    return asyncio.run(read())


@pytest.mark.parametrize("size", [1, 2, 100])
def test_offsets_count_characters_of_the_text(size: int) -> None:
    """Also of tokens that are a part of a character, and of those behind a stop sequence."""
    text = "a\N{HOT PEPPER}é漢b"
    ids = TOKENIZER.encode(text).ids
    offsets = [len(TOKENIZER.decode(ids[:at]).rstrip("\ufffd")) for at in range(len(ids))]
    assert max(offsets) == 4 < len(ids) - 1
    assert reported(text, size) == (text, offsets)
    assert reported(text, size, "éé") == (text, offsets)
    shown, cut = reported(text, size, "é漢b")
    assert (shown, cut) == ("a\N{HOT PEPPER}", [min(each, 2) for each in offsets])
