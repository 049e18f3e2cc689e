"""The load of every server: prompts as text and tokens, and the answer to each."""

from __future__ import annotations

import ast
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

PROMPT_TOKENS = 128


def write_workload(path: Path, model: Path, *, streams: int, lengths: Sequence[int]) -> None:
    """``streams`` prompts of about 128 tokens, with the answers of each of ``lengths`` tokens as text."""
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    following = json.loads((model / "following.json").read_text())
    texts = _texts(tokenizer, streams)
    prompts = [tokenizer.encode(text).ids for text in texts]
    work: dict[str, Any] = {
        "texts": texts,
        "prompts": prompts,
        "following": following,
        "answers": {
            str(length): tokenizer.decode_batch([answer(ids, following, length) for ids in prompts])
            for length in lengths
        },
    }
    path.write_text(json.dumps(work))


def answer(ids: Sequence[int], following: Sequence[int], length: int) -> list[int]:
    """The ``length`` tokens that follow the prompt."""
    token, tokens = ids[-1], []
    for _ in range(length):
        token = following[token]
        tokens.append(token)
    return tokens


def _texts(tokenizer: Tokenizer, count: int) -> list[str]:
    """Different pieces of one long text, each of about PROMPT_TOKENS tokens."""
    source = Path(ast.__file__).read_text() * 8
    ids = tokenizer.encode(source).ids
    step = max(1, (len(ids) - PROMPT_TOKENS) // count)
    return [tokenizer.decode(ids[index * step : index * step + PROMPT_TOKENS]) for index in range(count)]
