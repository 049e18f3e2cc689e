"""The ``transformers`` engine: safetensors weights, the model's configuration and a fast tokenizer."""

from collections.abc import Mapping, Sequence
from typing import Any

from builder.engine_environment import run_conversion
from builder.sizes.size_lines import size_lines
from builder.steps import EnginePlan, Step, Work, model_steps, place_fast_tokenizer, place_generation_config
from builder.weights.checkpoint import ModelConfig, read_config, safetensors_dtype
from builder.weights.files import place
from builder.weights.model_files import supporting_names, weight_names
from engine.pooling import pooling_names, read_pooling
from engine.tar.manifest import EngineFacts

KEYS = frozenset({"gguf_file", "weight_format", "dtype", "max_seq_len", "max_batch_size"})

_INDEX = "model.safetensors.index.json"


class Plan(EnginePlan):
    def fit_model(self, values: Mapping[str, Any]) -> list[str]:
        config = self.config
        max_seq_len = ModelConfig(values).max_seq_len(config.max_seq_len)
        return size_lines(
            values,
            config.dtype,
            max_seq_len,
            needs_gpu=False,
            embeds=self.embeds,
            batch_size=config.max_batch_size,
            file_bytes=self.file_bytes,
            file_dtype=self.file_dtype,
        )

    def steps(self) -> Sequence[Step]:
        return [
            *model_steps(self.config),
            Step("check model", _check_model),
            Step("weights (safetensors, converted if necessary)", place_weights),
            Step("tokenizer", place_fast_tokenizer),
        ]


def _check_model(work: Work) -> None:
    model_config = read_config(work.model)
    max_seq_len = model_config.max_seq_len(work.config.max_seq_len)
    work.facts = EngineFacts(
        engine_kind="transformers",
        dtype=work.config.dtype or model_config.dtype,
        quantization=model_config.quantization,
        max_batch_size=work.config.max_batch_size,
        max_input_len=max_seq_len - 1 if max_seq_len is not None and max_seq_len > 1 else None,
        max_seq_len=max_seq_len,
    )
    place_configuration(work)


def place_configuration(work: Work) -> None:
    """Place the model's configuration and, with trust_remote_code, its Python files.

    Raises PoolingUnsupported for an embedding model, whose ``facts`` get its lengths.
    """
    place(work.model.files["config.json"], work.directory / "config.json")
    place_generation_config(work)
    if work.config.trust_remote_code:
        for name in supporting_names(work.model.files, code=True):
            if name.endswith(".py"):
                place(work.model.files[name], work.directory / name)
    for name in pooling_names(work.model.files):
        place(work.model.files[name], work.directory / name)
    if (pooling := read_pooling(work.directory)) is not None:
        asked = work.facts.max_seq_len
        length = pooling.max_tokens if asked is None else pooling.limit(asked)
        work.facts = work.facts.model_copy(update={"max_seq_len": length, "max_input_len": length})


def place_weights(work: Work) -> None:
    """Place the weights as safetensors, converted if necessary; set their dtype if it is not known."""
    weight_format, names = weight_names(work.model.name, work.model.files, work.config.weight_format)
    if weight_format == "safetensors":
        _place_safetensors(work, names)
    else:
        what = f"turning {work.model.name}'s {weight_format} weights into safetensors"
        files = [work.model.files[name] for name in names]
        run_conversion("weights_to_safetensors.py", [work.directory, *files], what=what, folder=work.scratch)


def _place_safetensors(work: Work, names: Sequence[str]) -> None:
    model = work.model
    if len(names) > 1 and _INDEX not in model.files:
        raise model.unusable(f"its weights are {len(names)} files, but it lacks {_INDEX}")
    dtype = safetensors_dtype(model, names)
    if work.facts.dtype is None:
        work.facts = work.facts.model_copy(update={"dtype": dtype})
    for name in names:
        placed = work.directory / ("model.safetensors" if len(names) == 1 else name)
        place(model.files[name], placed, or_link=work.serves_here)
    if len(names) > 1:
        place(model.files[_INDEX], work.directory / _INDEX)
