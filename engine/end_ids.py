"""End-of-text token ids, read from the files of a model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from errors.engine_tar import EngineUnreadable

if TYPE_CHECKING:  # It is loaded where a tokenizer is.
    from tokenizers import Tokenizer

_KEYS = ("eos_token", "eot_token", "eom_token")
_END_TEXTS = (
    *("<|im_end|>", "<|eot_id|>", "<|eom_id|>", "<|eot|>", "<|eom|>", "<|EOT|>", "<|end|>", "<|return|>"),
    *("<|call|>", "<|calls|>", "<|flush|>", "<end_of_turn>", "<|end_of_turn|>", "<turn|>"),
    *("<|tool_response>", "<|END_OF_TURN_TOKEN|>", "[|endofturn|]", "<|endoftext|>", "<|end_of_text|>"),
    *("<｜end▁of▁sentence｜>", "<end_of_utterance>"),
)
"""Tokens that end a turn or a text in every model that has them (a list like llama.cpp's)."""
_SPECIAL_END_TEXTS = ("</s>", "<eos>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]")
"""Tokens that end a text only where they are special: elsewhere they may be HTML, for example."""
_END_OF_MESSAGE = "<|end|>"
_BEGINS_OF_MESSAGES = ("<|start|>", "<|begin|>")
"""Tokens of models (gpt-oss, Solar) in which ``<|end|>`` separates the messages of one answer."""


def read_end_ids(engine_dir: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Read the end ids that any file names, and those of well-known end tokens, the most common first.

    All files are read because trainers often change only one of them. Raises EngineUnreadable.
    """
    config = read_json(engine_dir / "config.json")
    models = [config, config.get("text_config"), config.get("pretrained_config")]
    documents = [each for each in models if isinstance(each, dict)]
    generation = read_json(engine_dir / "generation_config.json")
    ids = [each for document in (generation, *documents) for each in as_ids(document.get("eos_token_id"))]
    ids += [*_named_end_ids(engine_dir, tokenizer), *_well_known_end_ids(tokenizer)]
    # A tokenizer may have tokens that the model can't generate, and that its engine refuses.
    vocab_size = next((size for each in documents for size in as_ids(each.get("vocab_size"))), None)
    known = [each for each in ids if vocab_size is None or each < vocab_size]
    return tuple(dict.fromkeys(known or ids))


def tokenizer_end_id(engine_dir: Path, tokenizer: Tokenizer) -> int | None:
    """Return the end token that the tokenizer's configuration names. Raises EngineUnreadable."""
    return next(_named_end_ids(engine_dir, tokenizer, _KEYS[:1]), None)


def _named_end_ids(engine_dir: Path, tokenizer: Tokenizer, keys: Sequence[str] = _KEYS) -> Iterator[int]:
    """Yield the ids of the tokens that the tokenizer's files name under ``keys``."""
    config = read_json(engine_dir / "tokenizer_config.json")
    for document in (config, read_json(engine_dir / "special_tokens_map.json")):
        for key in keys:
            token = document.get(key)
            text = token.get("content") if isinstance(token, dict) else token
            if isinstance(text, str) and (id_ := _id_of(text, engine_dir, config, tokenizer)) is not None:
                yield id_


def _id_of(text: str, engine_dir: Path, config: dict[str, Any], tokenizer: Tokenizer) -> int | None:
    """Find a token's id in ``tokenizer.json``, or in the files that list added tokens."""
    try:
        id_ = tokenizer.token_to_id(text)
    except UnicodeEncodeError:  # JSON may hold half of a character, which is no token.
        return None
    if id_ is None:
        id_ = read_json(engine_dir / "added_tokens.json").get(text)
    added = config.get("added_tokens_decoder")
    for number, token in added.items() if id_ is None and isinstance(added, dict) else ():
        if isinstance(token, dict) and token.get("content") == text and number.isdecimal():
            id_ = int(number)
    return next(iter(as_ids(id_)), None)


def _well_known_end_ids(tokenizer: Tokenizer) -> Iterator[int]:
    added = tokenizer.get_added_tokens_decoder().items()
    special = {token.content: id_ for id_, token in added if token.special}
    has_messages = any(tokenizer.token_to_id(text) is not None for text in _BEGINS_OF_MESSAGES)
    for text in _END_TEXTS:
        if text == _END_OF_MESSAGE and has_messages:
            continue
        if (id_ := tokenizer.token_to_id(text)) is not None:
            yield id_
    yield from (special[text] for text in _SPECIAL_END_TEXTS if text in special)


def as_ids(value: object) -> tuple[int, ...]:
    """Return the ids of a number, a list of them, or nothing."""
    values = value if isinstance(value, list) else [value]
    return tuple(each for each in values if type(each) is int and each >= 0)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; empty where there is no such file. Raises EngineUnreadable."""
    if not path.is_file():
        return {}
    try:
        document = json.loads(path.read_text())
    except (ValueError, RecursionError) as exc:
        raise EngineUnreadable(place=path, reason=f"it is not JSON ({exc})") from exc
    return document if isinstance(document, dict) else {}
