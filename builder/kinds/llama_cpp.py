"""The ``llama_cpp`` engine: a GGUF file as it is, and what it says about the model as the runner reads it."""

from collections.abc import Mapping, Sequence
from typing import Any

from builder.config.config import BuildConfig
from builder.sizes.size_lines import size_lines
from builder.steps import EnginePlan, Step, Work, download_step, place_fast_tokenizer, place_generation_config
from builder.weights.checkpoint import ModelConfig, read_config
from builder.weights.files import place
from engine.kinds import GGUF_NAME, LLAMA_CPP_SEQUENCES
from engine.tar.manifest import EngineFacts
from errors.build_config import ConflictingBuildKeys, InvalidBuildValue

KEYS = frozenset({"gguf_file", "max_seq_len", "max_batch_size"})


class Plan(EnginePlan):
    def __init__(self, config: BuildConfig) -> None:
        super().__init__(config)
        if config.gguf_file is None:
            raise ConflictingBuildKeys(
                problem=f"asks for engine {config.engine_kind}, which runs GGUF files, but names none",
                remedy="give gguf_file (on the command line: owner/name:FILE.gguf) or choose another engine",
            )
        if (config.max_batch_size or 0) > LLAMA_CPP_SEQUENCES:
            expected = f"at most {LLAMA_CPP_SEQUENCES} with engine {config.engine_kind}"
            raise InvalidBuildValue(key="max_batch_size", expected=expected, value=config.max_batch_size)

    def fit_model(self, values: Mapping[str, Any]) -> list[str]:
        config = self.config
        max_seq_len = ModelConfig(values).max_seq_len(config.max_seq_len)
        batch_size = config.max_batch_size
        return size_lines(values, None, max_seq_len, needs_gpu=False, embeds=False, batch_size=batch_size)

    def steps(self) -> Sequence[Step]:
        return [
            download_step(self.config, with_weights=True),
            Step("weights (the GGUF file)", _place_weights),
            Step("configuration", _place_description),
            Step("tokenizer", place_fast_tokenizer),
        ]


def _place_weights(work: Work) -> None:
    assert work.config.gguf_file is not None, "checked by __init__"
    place(work.model.files[work.config.gguf_file], work.directory / GGUF_NAME, or_link=work.serves_here)


def _place_description(work: Work) -> None:
    """Place what the file says besides its weights, and take it as the model for the steps that follow."""
    # NOTE: imported where it is needed, because the gguf library takes a third of a second.
    from builder.gguf.convert import describe

    assert work.config.gguf_file is not None, "checked by __init__"
    work.model = describe(work.model, work.config.gguf_file, work.scratch / "gguf")
    model_config = read_config(work.model)
    max_seq_len = model_config.max_seq_len(work.config.max_seq_len)
    work.facts = EngineFacts(
        engine_kind=work.config.engine_kind,
        quantization=model_config.values["quantization_config"]["type"],
        max_batch_size=work.config.max_batch_size,
        max_input_len=max_seq_len - 1 if max_seq_len is not None and max_seq_len > 1 else None,
        max_seq_len=max_seq_len,
    )
    place(work.model.files["config.json"], work.directory / "config.json")
    place_generation_config(work)
