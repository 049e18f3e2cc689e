"""Facts of the model in an engine directory: tokenizer, end and pad ids, lengths."""

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
"""END_ID and PAD_ID of the original cog-triton, for engines without end ids."""

# NOTE: otherwise a single text is passed to a thread pool: two context switches, and nothing in parallel.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_LONG_TEXT_CHARACTERS = 4096
"""Shorter texts take well under a millisecond; longer ones are tokenized in a thread."""
_long_texts = ThreadPoolExecutor(max(1, (os.cpu_count() or 1) // 2), thread_name_prefix="tokenize")
"""Uses half of the processors, because streams are running."""


@dataclass(frozen=True)
class ModelFacts:
    """Facts of one model. Lengths are in tokens."""

    tokenizer: Tokenizer
    end_ids: tuple[int, ...]
    """Tokens that end a text. The engine itself stops only at the first one."""
    pad_id: int
    max_sequence_length: int
    """Prompt and output together."""
    max_input_length: int
    chat: ChatTemplate

    async def encode(self, text: str, *, adds_special_tokens: bool = True) -> list[int]:
        """Token ids of a prompt, with the special tokens that the tokenizer adds."""
        ids: list[int]
        if len(text) < _LONG_TEXT_CHARACTERS:
            # NOTE: this keeps the GIL. ``encode_batch_fast`` would compete for it with hundreds of threads.
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
    """Settings override the facts of the engine directory."""
    tokenizer = _load_tokenizer(engine.path / "tokenizer.json")
    config = read_json(engine.path / "config.json")
    if settings.end_id is None:
        end_ids = read_end_ids(engine.path, tokenizer.token_to_id) or (_DEFAULT_ID,)
    else:
        end_ids = (settings.end_id,)
    pad_id = next(iter(as_ids(config.get("pad_token_id"))), end_ids[0])
    max_sequence_length = settings.max_sequence_length or _max_sequence_length(engine, config)
    max_input_length = min(_max_input_length(engine, max_sequence_length), max_sequence_length - 1)
    return ModelFacts(
        tokenizer=tokenizer,
        end_ids=end_ids,
        pad_id=pad_id if settings.pad_id is None else settings.pad_id,
        max_sequence_length=max_sequence_length,
        max_input_length=max_input_length,
        chat=load_chat_template(engine.path, settings.chat_template),
    )


def _load_tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as exc:  # NOTE: tokenizers raises bare Exception.
        raise TritonTokenizerError(reason=f"{path} can't be loaded: {exc}") from exc
    # A tokenizer file may contain the truncation and padding of its training.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _max_input_length(engine: Engine, max_sequence_length: int) -> int:
    """NOTE: most TensorRT engines have no meaningful limit: see ``CompiledConfig.prompt_limit``."""
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
            expected="set, because the engine's config.json has no max_position_embeddings",
            value=length,
        )
    return length
