"""The ensemble on a SentencePiece-like tokenizer: text that continues the prompt's, and all end tokens."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.runner.detokenizer.test_detokenizer import KINDS
from tests.runner.paced_engine import make_paced_model
from tests.runner.servers import ENSEMBLE, TritonUnderTest

pytestmark = pytest.mark.servers

PROMPT = "The fox do"


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TritonUnderTest]:
    folder: Path = tmp_path_factory.mktemp("sentencepiece")
    tokenizer = Tokenizer.from_str(KINDS["llama"]().to_str())
    tokenizer.add_special_tokens(["<|im_end|>", "<|eot_id|>"])
    model = make_paced_model(folder / "model", 0, tokenizer=tokenizer)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COG_TRITON_SCRIPT", "requests")
        server = TritonUnderTest(model, folder)
    yield server
    server.close()


def texts(server: TritonUnderTest, prompt: str, **fields: Any) -> list[str]:
    """Return the texts of the answer as a whole, and streamed."""
    body = {"text_input": prompt, "max_tokens": 40, **fields}
    whole = server.post(f"{ENSEMBLE}/generate", body).json()["text_output"]
    streamed = server.stream(f"{ENSEMBLE}/generate_stream", {**body, "stream": True})
    return [whole, "".join(event["text_output"] for event in streamed)]


def answering(ids: list[int], end: str = PROMPT) -> str:
    return f"```script\n{json.dumps([{'answer': [{'ids': ids}]}])}\n```\n{end}"


def test_text_continues_that_of_the_prompt(sentencepiece: TritonUnderTest) -> None:
    tokenizer = sentencepiece.model.tokenizer
    ids = tokenizer.encode(f"{PROMPT} not ask  ü").ids
    prompt = answering(ids[len(tokenizer.encode(PROMPT).ids) :])
    assert texts(sentencepiece, prompt) == [" not ask  ü"] * 2
    whole, _ = texts(sentencepiece, prompt, exclude_input_in_output=False)
    assert whole.endswith(f"\n{PROMPT} not ask  ü")


@pytest.mark.parametrize("end", ["<|im_end|>", "<|eot_id|>", "<|end|>"])
def test_all_end_tokens_of_the_model_end_it(sentencepiece: TritonUnderTest, end: str) -> None:
    """The engine itself has the first one alone."""
    tokenizer = sentencepiece.model.tokenizer
    ids = [*tokenizer.encode("fox").ids, tokenizer.token_to_id(end), *tokenizer.encode("lost").ids]
    assert texts(sentencepiece, answering(ids)) == [" fox"] * 2


def test_scripted_answers_obey_stop_words(sentencepiece: TritonUnderTest) -> None:
    """A stop word is part of the output, and may be a part of a word."""
    ids = sentencepiece.model.tokenizer.encode("quick brown fox").ids
    assert texts(sentencepiece, answering(ids), stop_words=["brown"]) == [" quick brown"] * 2
    assert texts(sentencepiece, answering(ids), stop_words=["zz", "row"]) == [" quick brow"] * 2
