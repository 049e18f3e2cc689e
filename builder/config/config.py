"""The build config: cog-trt-llm's YAML keys plus the choice of engine, as frozen models.

A config never holds a token: ``hf_token`` is taken out before the rest becomes a model
(``builder.config.file``), so that a config can be printed and packed as it stands.
"""

from __future__ import annotations

import math
import re
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from engine.redact import redact_url

EngineKind = Literal["tensorrt_llm", "vllm", "transformers", "paced"]
WeightFormat = Literal["safetensors", "bin", "pt"]
DataType = Literal["float32", "float16", "bfloat16"]

_REPOSITORY_NAME = re.compile(
    r"(?!.*(?:--|\.\.))[A-Za-z0-9][\w.-]{0,95}(?:/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII
)
_ADAPTER_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"(?!.*\.\.)[^\s/][^\s]{0,199}")


def _model_id(value: str) -> str:
    if not _REPOSITORY_NAME.fullmatch(value):
        raise ValueError("the name of a Hugging Face model, as in 'sshleifer/tiny-gpt2'")
    return value


def _revision(value: str) -> str:
    if not _REVISION.fullmatch(value) or not value.isprintable():
        raise ValueError("a branch, tag or commit of the model's repository")
    return value


def _inner_path(value: str) -> str:
    path = PurePosixPath(value)
    if not value.strip() or path.is_absolute() or ".." in path.parts or not value.isprintable():
        raise ValueError("a relative path that stays inside its folder")
    return value


def _output_path(value: str) -> str:
    if not value.strip() or ".." in PurePosixPath(value).parts or not value.isprintable():
        raise ValueError("a path without '..'")
    return value


def _tar_url(value: str) -> str:
    try:
        url = urlsplit(value)
    except ValueError:
        url = urlsplit("")
    if url.scheme not in ("http", "https") or not url.netloc or not url.path.endswith(".tar"):
        raise ValueError("an http(s) URL whose path ends in .tar")
    return value


def _adapter_name(value: str) -> str:
    if not _ADAPTER_NAME.fullmatch(value):
        raise ValueError("a name of letters, digits, '.', '_' and '-'")
    return value


def _argument(value: object) -> object:
    if value is not None and not isinstance(value, (str, bool, int, float)):
        raise ValueError("text, a number, true, false or empty")
    return value


def _rate(value: float) -> float:
    if not math.isfinite(value) or value < 0:
        raise ValueError("a number of tokens per second, 0 for as fast as possible")
    return value


ModelId = Annotated[str, AfterValidator(_model_id)]
Revision = Annotated[str, AfterValidator(_revision)]
InnerPath = Annotated[str, AfterValidator(_inner_path)]
OutputPath = Annotated[str, AfterValidator(_output_path)]
TarUrl = Annotated[str, AfterValidator(_tar_url)]
Rate = Annotated[float, AfterValidator(_rate)]
AdapterName = Annotated[str, AfterValidator(_adapter_name)]
ArgumentValue = Annotated[Any, AfterValidator(_argument)]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


class ProgramStep(_Section):
    """One program of a TensorRT-LLM build; an argument without a value is a flag."""

    executable: Literal["python", "trtllm-build"] | None = None
    script: InnerPath | None = None
    output_dir: OutputPath
    args: dict[str, ArgumentValue] | None = None


class BuildStep(ProgramStep):
    """The step that compiles the engine.

    ``fit_lengths``: max_seq_len and max_input_len beyond the model's max_position_embeddings are cut to it,
    where they would be refused. Configs that come from old ones have it: these knew no limit.
    """

    fit_lengths: bool = False


class Target(_Section):
    """What an engine is for: ``sm`` 86 is compute capability 8.6, ``gpus`` how many of them run it."""

    sm: int | None = Field(default=None, ge=70, le=130)
    gpus: int | None = Field(default=None, ge=1, le=1024)


class PacedEngine(_Section):
    """What the ``paced`` engine does: ``tokens_per_second`` per stream, 0 for as fast as possible."""

    tokens_per_second: Rate


class LoraAdapter(_Section):
    """Where a LoRA adapter's files come from: one of ``model_id`` and ``model_path``."""

    model_id: ModelId | None = None
    revision: Revision = "main"
    model_path: InnerPath | None = None


class BuildConfig(_Section):
    """Everything an engine is built from, except the token.

    One without a ``version`` is cog-trt-llm's: its old names are understood (``builder.trtllm.old.config``).
    """

    version: Literal[1] | None = None
    engine: EngineKind | None = None
    model_id: ModelId | None = None
    revision: Revision = "main"
    model_tar_url: TarUrl | None = None
    model_path: InnerPath | None = None
    weight_format: WeightFormat | None = None
    trust_remote_code: bool = False
    dtype: DataType | None = None
    max_seq_len: int | None = Field(default=None, ge=1)
    max_batch_size: int | None = Field(default=None, ge=1)
    paced: PacedEngine | None = None
    vllm: dict[str, Any] | None = None
    """Arguments of vLLM's engine; ``builder.config.vllm_arguments`` checks them."""
    lora: dict[AdapterName, LoraAdapter] | None = None
    example_name: InnerPath | None = None
    convert_to_ft: ProgramStep | None = None
    quantize: ProgramStep | None = None
    build: BuildStep | None = None
    target: Target | None = None

    @property
    def engine_kind(self) -> EngineKind:
        """The kind asked for; a config of programs is cog-trt-llm's, which knew only TensorRT-LLM."""
        if self.engine is not None:
            return self.engine
        return "tensorrt_llm" if self.program_steps else "transformers"

    @property
    def program_steps(self) -> dict[str, ProgramStep]:
        """The TensorRT-LLM programs given, by key, in the order they run."""
        steps = {"convert_to_ft": self.convert_to_ft, "quantize": self.quantize, "build": self.build}
        return {name: step for name, step in steps.items() if step is not None}

    @property
    def model_name(self) -> str:
        """The model as the caller knows it, fit to be printed."""
        named = self.model_id or self.model_path
        return named if named is not None else redact_url(self.model_tar_url or "")
