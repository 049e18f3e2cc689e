"""Small random models, served by the ``transformers`` engine, and what ``model.generate`` answers."""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, PretrainedConfig, PreTrainedModel

from runner.engines.protocol.adapter import EngineAdapter
from runner.engines.protocol.messages import FinishReason, Sampling, Submit
from runner.engines.transformers.adapter import load
from tests.runner.engines.recording_sink import RecordingSink

VOCAB_SIZE = 300
MAX_SEQUENCE_LENGTH = 1024
GREEDY = Sampling(temperature=0.0)

_SHAPE = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "max_position_embeddings": MAX_SEQUENCE_LENGTH,
    # Large enough that a random model's greedy output wanders instead of repeating a token.
    "initializer_range": 0.3,
}


def llama(**changes: Any) -> PretrainedConfig:
    return LlamaConfig(**{**_SHAPE, **changes})


def mistral(**changes: Any) -> PretrainedConfig:
    return MistralConfig(**{**_SHAPE, **changes})


def save_model(config: PretrainedConfig, directory: Path, **generation: Any) -> Path:
    """Return a model of random weights, as an engine directory.

    ``generation``: of its generation_config.json.
    """
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config)
    for name, value in generation.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(directory)
    return directory


class Served:
    def __init__(self, engine: EngineAdapter, sink: RecordingSink, model: PreTrainedModel) -> None:
        self.engine = engine
        self.sink = sink
        self.model = model
        self._ids = itertools.count()

    def submit(
        self, prompt: list[int], max_tokens: int, sampling: Sampling = GREEDY, **arguments: Any
    ) -> int:
        request_id = next(self._ids)
        self.engine.submit(Submit(request_id, prompt, max_tokens, sampling, **arguments))
        return request_id

    def answer(
        self, prompt: list[int], max_tokens: int, sampling: Sampling = GREEDY, **arguments: Any
    ) -> tuple[list[int], FinishReason]:
        return self.sink.wait(self.submit(prompt, max_tokens, sampling, **arguments))

    def generate(self, prompt: list[int], max_tokens: int, **arguments: Any) -> list[int]:
        settings = {"do_sample": False, "max_new_tokens": max_tokens, "eos_token_id": None, "pad_token_id": 0}
        inputs = torch.tensor([prompt])
        output = self.model.generate(
            inputs, attention_mask=torch.ones_like(inputs), **{**settings, **arguments}
        )
        tokens: list[int] = output[0, len(prompt) :].tolist()
        return tokens

    @torch.no_grad()
    def scores(self, tokens: list[int]) -> torch.Tensor:
        """Return the model's raw scores for the token after ``tokens``: [vocabulary]."""
        logits: torch.Tensor = self.model(torch.tensor([tokens])).logits
        return logits[0, -1]


@contextmanager
def serve(directory: Path, load: Callable[..., EngineAdapter] = load, **options: str) -> Iterator[Served]:
    """Serve the engine in ``directory``, which also has the model as transformers saves it."""
    sink = RecordingSink()
    model = AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
    engine = load(directory, sink, options)
    try:
        yield Served(engine, sink, model)
    finally:
        engine.close()


def prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    ids: list[int] = torch.randint(VOCAB_SIZE, (length,), generator=generator).tolist()
    return ids
