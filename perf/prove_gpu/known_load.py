"""The load of every server: prompts as text and tokens, and the answer to each."""

import ast
import json
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

_PROMPT_TOKENS = 128


def write_workload(path: Path, model: Path, *, streams: int, lengths: Sequence[int]) -> None:
    """``streams`` prompts of about 128 tokens, with the answers of each of ``lengths`` tokens as text."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    following = json.loads((model / "following.json").read_text())
    ids = tokenizer.encode(Path(ast.__file__).read_text() * 8).ids
    step = max(1, (len(ids) - _PROMPT_TOKENS) // streams)
    texts = [
        tokenizer.decode(ids[start : start + _PROMPT_TOKENS]) for start in range(0, streams * step, step)
    ]
    prompts = [tokenizer.encode(text).ids for text in texts]
    answers = {
        length: tokenizer.decode_batch([answer(prompt, following, length) for prompt in prompts])
        for length in lengths
    }
    path.write_text(
        json.dumps({"texts": texts, "prompts": prompts, "following": following, "answers": answers})
    )


def answer(ids: Sequence[int], following: Sequence[int], length: int) -> list[int]:
    """The ``length`` tokens that follow the prompt."""
    token, tokens = ids[-1], []
    for _ in range(length):
        token = following[token]
        tokens.append(token)
    return tokens
