"""A paced engine made here: its tokenizer, its engine.tar, and what it must answer.

The paced engine repeats the prompt's tokens, so that every output is known in advance. The tokenizer
is byte-level, so that emoji and Chinese characters are several tokens each.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from engine.tar.manifest import EngineFacts
from engine.tar.pack import pack
from engine.tar.unpack import unpack

END_TOKEN = "</s>"
END_ID = 0
MAX_SEQUENCE_LENGTH = 4096
TOKENS_PER_SECOND = 200
"""Rate of each stream, in the servers that tests share."""

_CORPUS = [
    "What is machine learning?",
    "Water + Fire = Steam\nEarth + Water = Plant\nHuman + Robe = Judge\nCow + Fire = Steak",
    "Once upon a time there was a small engine that repeated what it was told.",
]


@dataclass(frozen=True)
class PacedModel:
    """An unpacked paced engine and its tar."""

    directory: Path
    tar: Path
    tokenizer: Tokenizer

    def ids(self, prompt: str) -> list[int]:
        return self.tokenizer.encode(prompt).ids

    def expected_ids(self, prompt: str, count: int) -> list[int]:
        ids = self.ids(prompt)
        return [ids[index % len(ids)] for index in range(count)]

    def expected_text(self, prompt: str, count: int) -> str:
        return self.tokenizer.decode(self.expected_ids(prompt, count))


def make_paced_model(
    folder: Path,
    tokens_per_second: float,
    *,
    max_batch_size: int = 64,
    max_seq_len: int = MAX_SEQUENCE_LENGTH,
    tokenizer: Tokenizer | None = None,
    end_token: str = END_TOKEN,
    chat_template: str | None = None,
) -> PacedModel:
    """Make the engine in ``folder``: ``engine.tar`` and, unpacked, ``engine``."""
    tokenizer = tokenizer or make_tokenizer()
    source = folder / "source"
    source.mkdir(parents=True)
    tokenizer.save(str(source / "tokenizer.json"))
    template = {} if chat_template is None else {"chat_template": chat_template}
    _write(source / "tokenizer_config.json", {"eos_token": end_token, **template})
    config = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": max_seq_len}
    config |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    _write(source / "config.json", config | {"eos_token_id": tokenizer.token_to_id(end_token)})
    _write(source / "paced.json", {"tokens_per_second": tokens_per_second})
    facts = EngineFacts(engine_kind="paced", max_batch_size=max_batch_size, max_seq_len=max_seq_len)
    tar = folder / "engine.tar"
    pack(source, facts, tar)
    with tar.open("rb", buffering=0) as stream:
        unpack(stream, folder / "engine")
    return PacedModel(folder / "engine", tar, tokenizer)


def make_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=[END_TOKEN],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    return tokenizer


def _write(path: Path, document: Mapping[str, object]) -> None:
    path.write_text(json.dumps(document))
