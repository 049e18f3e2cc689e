"""Log probabilities of a generation: one for each token of the text."""

import asyncio

import pytest

from runner.api.generations import Piece
from runner.api.openai.answers import ChatChunkChoice
from runner.api.openai.formats import ChatFormat, TokenTexts
from runner.engines.protocol.messages import Output, TokenLogProb
from runner.generation.generation import Generation
from tests.runner.detokenizer.test_detokenizer import KINDS
from tests.runner.generation.outputs import Source, generate, in_chunks, model_of, request_of
from tests.runner.paced_engine import make_tokenizer

TOKENIZER = make_tokenizer()


@pytest.mark.parametrize("begins_turn", [True, False])
@pytest.mark.parametrize("kind", ["byte_level", "llama", "unigram_metaspace"])
def test_the_texts_of_the_tokens_are_the_text(kind: str, begins_turn: bool) -> None:
    """Also where the first one loses its space."""
    tokenizer = KINDS[kind]()
    prompt = tokenizer.encode("The fox").ids
    output = tokenizer.encode("The fox do not").ids[len(prompt) :]
    log_probs = [TokenLogProb(-float(at), [(each, -float(at))]) for at, each in enumerate(output)]
    text, generation = generate(
        model_of(tokenizer, (2,)),
        Source(Output(output, log_probs, "length")),
        prompt=prompt,
        num_top_log_probs=1,
        begins_turn=begins_turn,
    )
    tokens = generation.take_log_probs()
    assert [each.log_prob for each in tokens] == log_probs
    assert text == (" do not" if not begins_turn or kind == "byte_level" else "do not")
    piece = Piece(0, text, "length", tokens)
    (chat,) = ChatFormat(TokenTexts(tokenizer)).events(piece)
    assert isinstance(chat, ChatChunkChoice)
    assert "".join(each.token for each in chat.logprobs.content) == text
    assert bytes(byte for each in chat.logprobs.content for byte in each.bytes).decode() == text
    assert all(each.top_logprobs[0].token == each.token for each in chat.logprobs.content)


def reported(text: str, size: int, *stops: str) -> tuple[str, list[int]]:
    """Return the text of ``text``'s tokens, ``size`` at a time, and their offsets.

    None precedes what it counts.
    """
    ids = TOKENIZER.encode(text).ids
    chunks = [ids[at : at + size] for at in range(0, len(ids), size)]
    request = request_of(stop_sequences=stops, num_top_log_probs=0)

    async def read() -> tuple[str, list[int]]:
        generation = Generation(request, model_of(TOKENIZER), in_chunks(chunks))
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
