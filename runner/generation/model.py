"""What the runner must know of the model in an engine directory: its tokenizer, end and pad ids, lengths."""

from __future__ import annotations

import asyncio
import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engine.directory import Engine
from engine.end_ids import as_ids, read_end_ids, read_json
from engine.kinds import KINDS
from engine.tensorrt_llm_config import read_compiled_config
from errors.settings import InvalidSetting
from errors.triton import TritonTokenizerError
from runner.chat.template import ChatTemplate, load_chat_template
from runner.settings.settings import Settings

_DEFAULT_ID = 2
"""The original's END_ID and PAD_ID, where the engine tells nothing better."""

# NOTE: else one text is handed to a pool of threads and waited for: two switches, and nothing in parallel.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_LONG_TEXT_CHARACTERS = 4096
"""Tokenizing less takes well under a millisecond; more goes to a thread, off the event loop."""
_long_texts = ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2), thread_name_prefix="tokenize")
"""Not all processors at once: streams go on meanwhile."""


@dataclass(frozen=True)
class ModelFacts:
    """Facts of one loaded model. Lengths are in tokens."""

    tokenizer: Tokenizer
    end_ids: tuple[int, ...]
    """Tokens that end a text; the first is the one the engine stops at by itself."""
    pad_id: int
    max_sequence_length: int
    """Prompt and output together."""
    max_input_length: int
    chat: ChatTemplate

    async def encode(self, text: str, *, adds_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt, special tokens as the tokenizer adds them."""
        ids: list[int]
        if len(text) < _LONG_TEXT_CHARACTERS:
            # NOTE: it keeps the GIL, which the other would have to win back from hundreds of threads.
            ids = self.tokenizer.encode(text, add_special_tokens=adds_special_tokens).ids
            return ids
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(_long_texts, self._encode_long, text, adds_special_tokens)

    def _encode_long(self, text: str, adds_special_tokens: bool) -> list[int]:
        # "fast" skips the offsets of the tokens, which are not needed, and lets other threads run.
        (encoding,) = self.tokenizer.encode_batch_fast([text], add_special_tokens=adds_special_tokens)
        ids: list[int] = encoding.ids
        return ids


def load_model_facts(engine: Engine, settings: Settings) -> ModelFacts:
    """Read them; settings win over what the engine directory says."""
    tokenizer = _load_tokenizer(engine.path / "tokenizer.json")
    config = read_json(engine.path / "config.json")
    end_ids = _end_ids(engine.path, tokenizer) if settings.end_id is None else (settings.end_id,)
    max_sequence_length = settings.max_sequence_length or _max_sequence_length(engine, config)
    max_input_length = min(_max_input_length(engine, max_sequence_length), max_sequence_length - 1)
    return ModelFacts(
        tokenizer=tokenizer,
        end_ids=end_ids,
        pad_id=settings.pad_id if settings.pad_id is not None else _pad_id(config, end_ids),
        max_sequence_length=max_sequence_length,
        max_input_length=max_input_length,
        chat=load_chat_template(engine.path, settings.chat_template),
    )


def _load_tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as exc:  # NOTE: tokenizers raises bare Exception.
        raise TritonTokenizerError(reason=f"{path} can't be loaded: {exc}") from exc
    # A tokenizer file may carry the truncation and padding of its training.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _end_ids(engine_dir: Path, tokenizer: Tokenizer) -> tuple[int, ...]:
    return read_end_ids(engine_dir, tokenizer.token_to_id) or (_DEFAULT_ID,)


def _pad_id(config: dict[str, Any], end_ids: tuple[int, ...]) -> int:
    ids = as_ids(config.get("pad_token_id"))
    return ids[0] if ids else end_ids[0]


def _max_input_length(engine: Engine, max_sequence_length: int) -> int:
    """NOTE: that of most TensorRT engines' builds says nothing: see ``CompiledConfig.prompt_limit``."""
    if KINDS[engine.manifest.engine_kind].is_compiled:
        compiled = read_compiled_config(engine.path)
        return compiled.prompt_limit(is_chunked=compiled.has_paged_context)
    return engine.manifest.max_input_len or max_sequence_length


def _max_sequence_length(engine: Engine, config: dict[str, Any]) -> int:
    pretrained = config.get("pretrained_config")
    model = pretrained if isinstance(pretrained, dict) else config
    length = engine.manifest.max_seq_len or model.get("max_position_embeddings")
    if not isinstance(length, int):
        raise InvalidSetting(
            name="MAX_SEQUENCE_LENGTH",
            expected="set, because the engine's config.json does not tell it",
            value=length,
        )
    return length
