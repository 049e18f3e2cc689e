"""Facts of the model in an engine directory: tokenizer, end and pad ids, lengths."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from engine.directory import Engine
from engine.end_ids import as_ids, read_end_ids, read_json
from engine.kinds import KINDS
from engine.pooling import Pooling, read_pooling
from engine.sampling_defaults import read_sampling_defaults
from engine.tensorrt_llm_config import read_compiled_config
from errors.settings import InvalidSetting
from errors.triton import TritonTokenizerError
from runner.chat.control_tokens import NONE, ControlTokens
from runner.chat.families.family import Family
from runner.chat.families.recognition import recognize
from runner.chat.template import ChatTemplate, load_chat_template
from runner.generation.tokenizing import Tokenizing
from runner.settings.settings import Settings

_DEFAULT_ID = 2
"""END_ID and PAD_ID of the original cog-triton, for engines without end ids."""

_BYTES_PER_TOKEN = 32
_MIN_PROMPT_BYTES = 1 << 16
"""Factors of MAX_PROMPT_BYTES's default: several times the length of a model's longest prompts."""
_MARKER = re.compile(r"[^\w\s](.*\w.*)[^\w\s]", re.DOTALL)
"""Pattern of added tokens that are control tokens, though their file does not say so."""


@dataclass(frozen=True)
class ModelFacts:
    """Facts of one model. Lengths are in tokens."""

    tokenizing: Tokenizing
    end_ids: tuple[int, ...]
    """Tokens that end a text. The first one is the engine's end id, the others are stop words."""
    pad_id: int
    max_sequence_length: int
    """Limit of prompt and output together."""
    max_input_length: int
    chat: ChatTemplate
    family: Family | None = None
    """Family that says how the model writes calls and reasoning; None: not known."""
    warning: str = ""
    """A sentence for the log."""
    pooling: Pooling | None = None
    """Pooling of an embedding model; None: it generates text."""
    sampling_defaults: Mapping[str, float] = field(default_factory=dict)
    """Values of ``engine.sampling_defaults``, for the API's requests."""

    @property
    def tokenizer(self) -> Tokenizer:
        return self.tokenizing.tokenizer

    @property
    def max_prompt_bytes(self) -> int:
        return self.tokenizing.max_bytes

    async def encode(self, text: str, *, adds_special_tokens: bool = True) -> list[int]:
        """Encode a prompt, with the special tokens that the tokenizer adds. Raises E1002 and E1704."""
        return await self.tokenizing.encode(text, adds_special_tokens=adds_special_tokens)


def load_model_facts(engine: Engine, settings: Settings) -> ModelFacts:
    """Collect the facts of the engine directory, which settings override."""
    tokenizer = _load_tokenizer(engine.path / "tokenizer.json")
    config = read_json(engine.path / "config.json")
    if settings.end_id is None:
        end_ids = read_end_ids(engine.path, tokenizer) or (_DEFAULT_ID,)
    else:
        end_ids = (settings.end_id,)
    pad_id = next(iter(as_ids(config.get("pad_token_id"))), end_ids[0])
    max_sequence_length = settings.max_sequence_length or _max_sequence_length(engine, config)
    pooling = read_pooling(engine.path)
    if pooling is None:
        max_input_length = min(_max_input_length(engine, max_sequence_length), max_sequence_length - 1)
    else:
        max_input_length = max_sequence_length = pooling.limit(max_sequence_length)
    default_bytes = max(_BYTES_PER_TOKEN * max_input_length, _MIN_PROMPT_BYTES)
    max_prompt_bytes = settings.max_prompt_bytes or default_bytes
    control = NONE if settings.allows_special_tokens else _control_tokens(tokenizer)
    chat = load_chat_template(engine.path, settings.chat_template, control, max_prompt_bytes)
    recognized = recognize(settings.chat_family, chat, tokenizer)
    return ModelFacts(
        tokenizing=Tokenizing(
            tokenizer,
            max_bytes=max_prompt_bytes,
            max_tokens=max_input_length,
            control=frozenset([*control.special, *control.others]),
        ),
        end_ids=end_ids,
        pad_id=pad_id if settings.pad_id is None else settings.pad_id,
        max_sequence_length=max_sequence_length,
        max_input_length=max_input_length,
        chat=chat,
        family=recognized.family,
        warning=recognized.warning,
        pooling=pooling,
        sampling_defaults=_sampling_defaults(engine, settings),
    )


def _sampling_defaults(engine: Engine, settings: Settings) -> dict[str, float]:
    config = settings.generation_config
    if config == "none":
        return {}
    return read_sampling_defaults(engine.path) | (config if isinstance(config, dict) else {})


def _load_tokenizer(path: Path) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as exc:  # NOTE: tokenizers raises bare Exception.
        raise TritonTokenizerError(reason=f"{path} can't be loaded: {exc}") from exc
    # A tokenizer file may contain the truncation and padding of its training.
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _control_tokens(tokenizer: Tokenizer) -> ControlTokens:
    added = tokenizer.get_added_tokens_decoder().values()
    special = [each.content for each in added if each.special]
    others = [each.content for each in added if not each.special and _MARKER.fullmatch(each.content)]
    return ControlTokens(special, others)


def _max_input_length(engine: Engine, max_sequence_length: int) -> int:
    """Return the limit. Most TensorRT engines have no meaningful one: see ``CompiledConfig.prompt_limit``."""
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
