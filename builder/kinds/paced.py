"""The ``paced`` engine: a tokenizer and the rate at which tokens are emitted; no weights."""

import json
from collections.abc import Sequence

from builder.config.config import BuildConfig
from builder.steps import EnginePlan, Step, Work, download_step, place_fast_tokenizer, place_generation_config
from builder.weights.checkpoint import read_config
from engine.tar.manifest import EngineFacts
from errors.build_config import ConflictingBuildKeys

KEYS = frozenset({"paced", "max_seq_len", "max_batch_size"})

DEFAULT_MAX_SEQ_LEN = 4096
"""Tokens of prompt and output, if neither the config nor the tokenizer's model limits them."""

_TOKEN_IDS = ("bos_token_id", "eos_token_id", "pad_token_id")


class Plan(EnginePlan):
    takes_weights = False

    def __init__(self, config: BuildConfig) -> None:
        super().__init__(config)
        if config.paced is None:
            raise ConflictingBuildKeys(
                problem="lacks paced.tokens_per_second", remedy="add it (0 for as fast as possible)"
            )
        self._rate = config.paced.tokens_per_second

    def steps(self) -> Sequence[Step]:
        return [
            download_step(self.config, with_weights=False),
            Step("tokenizer", place_fast_tokenizer),
            Step(f"pace ({self._rate:g} tokens per second)", _write_pace),
        ]


def _write_pace(work: Work) -> None:
    assert work.config.paced is not None, "checked by __init__"
    known = read_config(work.model) if "config.json" in work.model.files else None
    model_limit = known.max_position_embeddings if known is not None else None
    max_seq_len = work.config.max_seq_len or model_limit or DEFAULT_MAX_SEQ_LEN
    token_ids = {key: known.values[key] for key in _TOKEN_IDS if known is not None and key in known.values}
    place_generation_config(work)
    pace = {"tokens_per_second": work.config.paced.tokens_per_second}
    config = {"max_position_embeddings": max_seq_len, "vocab_size": work.vocab_size, **token_ids}
    for name, content in (("paced.json", pace), ("config.json", config)):
        (work.directory / name).write_text(json.dumps(content, indent=2) + "\n")
    work.facts = EngineFacts(
        engine_kind="paced",
        max_batch_size=work.config.max_batch_size,
        max_input_len=max_seq_len - 1 if max_seq_len > 1 else None,
        max_seq_len=max_seq_len,
    )
