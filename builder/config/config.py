"""The build config: cog-trt-llm's YAML keys plus the choice of engine, as frozen models.

A config has no token, so it can be printed and packed: ``builder.config.file`` removes ``hf_token`` first.
"""

import math
import re
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from engine.kinds import with_backend
from engine.redact import redact_url
from engine.tar.manifest import EngineKind

WeightFormat = Literal["safetensors", "bin", "pt"]
DataType = Literal["float32", "float16", "bfloat16"]

_REPOSITORY_NAME = re.compile(
    r"(?!.*(?:--|\.\.))[A-Za-z0-9][\w.-]{0,95}(?:/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII
)
_ADAPTER_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,95}", re.ASCII)
_REVISION = re.compile(r"(?!.*\.\.)[^\s/][^\s]{0,199}")


def _check(is_valid: Callable[[Any], bool], expected: str) -> AfterValidator:
    def check(value: Any) -> Any:
        if not is_valid(value):
            raise ValueError(expected)
        return value

    return AfterValidator(check)


def _is_path(value: str) -> bool:
    return bool(value.strip()) and ".." not in PurePosixPath(value).parts and value.isprintable()


def _is_tar_url(value: str) -> bool:
    try:
        url = urlsplit(value)
    except ValueError:
        return False
    return url.scheme in ("http", "https") and bool(url.netloc) and url.path.endswith(".tar")


ModelId = Annotated[
    str, _check(_REPOSITORY_NAME.fullmatch, "the name of a Hugging Face model, as in 'sshleifer/tiny-gpt2'")
]
Revision = Annotated[
    str,
    _check(
        lambda value: bool(_REVISION.fullmatch(value)) and value.isprintable(),
        "a branch, tag or commit of the model's repository",
    ),
]
InnerPath = Annotated[
    str,
    _check(
        lambda value: _is_path(value) and not PurePosixPath(value).is_absolute(),
        "a relative path without '..'",
    ),
]
GgufName = Annotated[
    str,
    _check(
        lambda value: _is_path(value) and not PurePosixPath(value).is_absolute() and value.endswith(".gguf"),
        "a .gguf file's path inside the model's folder or repository",
    ),
]
OutputPath = Annotated[str, _check(_is_path, "a path without '..'")]
TarUrl = Annotated[str, _check(_is_tar_url, "an http(s) URL whose path ends in .tar")]
Rate = Annotated[
    float,
    _check(
        lambda value: math.isfinite(value) and value >= 0,
        "a number of tokens per second, 0 for as fast as possible",
    ),
]
AdapterName = Annotated[str, _check(_ADAPTER_NAME.fullmatch, "a name of letters, digits, '.', '_' and '-'")]
ArgumentValue = Annotated[
    Any,
    _check(
        lambda value: value is None or isinstance(value, (str, bool, int, float)),
        "text, a number, true, false or empty",
    ),
]


def shown(value: object) -> str:
    text = "empty" if value is None else repr(value)
    return text if len(text) <= 100 else text[:97] + "..."


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, protected_namespaces=())


class ProgramStep(_Section):
    """One program of a TensorRT-LLM build. An argument without a value is a flag."""

    executable: Literal["python", "trtllm-build"] | None = None
    script: InnerPath | None = None
    output_dir: OutputPath
    args: dict[str, ArgumentValue] | None = None


class BuildStep(ProgramStep):
    """The step that compiles the engine.

    ``fit_lengths`` reduces max_seq_len and max_input_len to the model's max_position_embeddings, which are
    otherwise rejected if they exceed it. Migrated configs have it, as earlier versions had no limit.
    """

    fit_lengths: bool = False


class Target(_Section):
    """The GPUs that run the engine: ``sm`` is their architecture (86 for 8.6), ``gpus`` their number."""

    sm: int | None = Field(default=None, ge=70, le=130)
    gpus: int | None = Field(default=None, ge=1, le=1024)


class PacedEngine(_Section):
    """Options of the ``paced`` engine: ``tokens_per_second`` per stream, 0 for as fast as possible."""

    tokens_per_second: Rate


class LoraAdapter(_Section):
    """The source of a LoRA adapter: one of ``model_id`` and ``model_path``."""

    model_id: ModelId | None = None
    revision: Revision = "main"
    model_path: InnerPath | None = None


class BuildConfig(_Section):
    """Everything that an engine is built from, except the token.

    A config without a ``version`` may be cog-trt-llm's: its old names are migrated.
    """

    version: Literal[1] | None = None
    engine: EngineKind | None = None
    backend: Literal["tensorrt", "pytorch"] | None = None
    """Backend of TensorRT-LLM; without one it compiles an engine."""
    model_id: ModelId | None = None
    revision: Revision = "main"
    model_tar_url: TarUrl | None = None
    model_path: InnerPath | None = None
    gguf_file: GgufName | None = None
    weight_format: WeightFormat | None = None
    trust_remote_code: bool = False
    dtype: DataType | None = None
    max_seq_len: int | None = Field(default=None, ge=1)
    max_batch_size: int | None = Field(default=None, ge=1)
    paced: PacedEngine | None = None
    vllm: dict[str, Any] | None = None
    """Arguments of vLLM's engine; ``builder.config.vllm_arguments`` checks them."""
    llm_args: dict[str, Any] | None = None
    """Arguments of TensorRT-LLM's ``LLM``; ``builder.config.llm_arguments`` checks them."""
    lora: dict[AdapterName, LoraAdapter] | None = None
    example_name: InnerPath | None = None
    convert_to_ft: ProgramStep | None = None
    quantize: ProgramStep | None = None
    build: BuildStep | None = None
    target: Target | None = None

    @property
    def engine_kind(self) -> EngineKind:
        """Kind that is set; without one tensorrt_llm if it has programs or a backend, else transformers."""
        engine = self.engine
        if engine is None:
            engine = "tensorrt_llm" if self.program_steps or self.backend else "transformers"
        return with_backend(engine, self.backend)

    @property
    def program_steps(self) -> dict[str, ProgramStep]:
        """The TensorRT-LLM programs, by key, in the order in which they run."""
        steps = {"convert_to_ft": self.convert_to_ft, "quantize": self.quantize, "build": self.build}
        return {name: step for name, step in steps.items() if step is not None}

    @property
    def model_name(self) -> str:
        named = self.model_id or self.model_path
        return named if named is not None else redact_url(self.model_tar_url or "")
