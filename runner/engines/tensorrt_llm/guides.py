"""Guides in TensorRT-LLM: XGrammar inside the executor, which needs the tokenizer at its start."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engine.end_ids import read_end_ids
from runner.engines.protocol.messages import Guide

_NO_TOKEN = ""
"""For unused ids: the list is indexed by token id."""


def guided_decoding_config(bindings: Any, engine_dir: Path) -> Any:
    """The argument of ``ExecutorConfig``. Raises the tokenizer library's errors for an invalid file."""
    tokenizer = Tokenizer.from_file(str(engine_dir / "tokenizer.json"))
    tokens = {token_id: token for token, token_id in tokenizer.get_vocab(with_added_tokens=True).items()}
    # Only the first: it is the end id of requests.
    stop_token_ids = read_end_ids(engine_dir, tokenizer.token_to_id)[:1]
    return bindings.GuidedDecodingConfig(
        bindings.GuidedDecodingConfig.GuidedDecodingBackend.XGRAMMAR,
        encoded_vocab=[tokens.get(token_id, _NO_TOKEN) for token_id in range(max(tokens) + 1)],
        tokenizer_str=tokenizer.to_str(),
        stop_token_ids=list(stop_token_ids) or None,
    )


def guided_decoding_params(bindings: Any, guide: Guide) -> Any:
    """The argument of ``Request``. NOTE: the executor's names are NVIDIA's tensor values in capitals."""
    guide_type = getattr(bindings.GuidedDecodingParams.GuideType, guide.type.upper())
    return bindings.GuidedDecodingParams(guide_type, guide.text or None)
