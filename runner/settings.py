"""The runner's configuration: the environment, and the YAML that it names, parsed once, at the edge.

A value that does not fit is E1006, naming the variable. The environment wins over the YAML.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from engine.python import ENGINE_PYTHON_VARIABLE, engine_python
from errors.base import CodedError
from errors.prompt import InvalidSetting
from runner.prompt import format_prompt
from runner.server_config import ServerArguments, read_server_config, server_arguments

DEFAULT_ENGINE_DIR = "/src/triton_model_repo/tensorrt_llm/1"


class Settings(BaseModel):
    """Everything the runner reads from outside a request. Units are in the names; see ``VARIABLES``."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine_dir: Path = Path(DEFAULT_ENGINE_DIR)
    weights: str | None = None
    cache_dir: Path
    cache_limit_gib: float | None = None
    system_prompt: str = ""
    prompt_template: str = "{prompt}"
    stop_sequences: str | None = None
    end_id: int | None = None
    pad_id: int | None = None
    max_sequence_length: int | None = None
    world_size: int | None = None
    log_performance_metrics: bool = False
    triton_backend_dir: Path | None = None
    triton_timeout_s: float = 120.0
    triton_start_timeout_s: float = 300.0
    triton_host: str = "0.0.0.0"  # noqa: S104 - the image's ports are published by its user
    triton_http_port: int = 8000
    triton_grpc_port: int = 8001
    triton_metrics_port: int = 8002
    engine_python: str
    server: ServerArguments = {}


@dataclass(frozen=True)
class Variable:
    """One environment variable: the setting it sets, how its text is read, and what it means."""

    name: str
    field: str
    parse: Callable[[str], Any]
    meaning: str


def _at_least(number: type[int] | type[float], minimum: float) -> Callable[[str], Any]:
    noun = "a whole number" if number is int else "a number"

    def parse(text: str) -> Any:
        try:
            value = number(text)
        except ValueError:
            value = None
        if value is None or not minimum <= value < float("inf"):
            raise ValueError(f"{noun} of at least {minimum:g}")
        return value

    return parse


def _port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise ValueError("a port, 1 to 65535")
    return int(text)


def _boolean(text: str) -> bool:
    if text.lower() not in ("1", "0", "true", "false", "yes", "no", "on", "off"):
        raise ValueError("true or false")
    return text.lower() in ("1", "true", "yes", "on")


def _directory(text: str) -> Path:
    if not Path(text).is_dir():
        raise ValueError("a folder that exists")
    return Path(text)


def _program(text: str) -> str:
    if not os.access(text, os.X_OK) or Path(text).is_dir():
        raise ValueError("the path of a Python that can be run")
    return text


VARIABLES = (
    Variable("COG_WEIGHTS", "weights", str, "URL or path of the engine.tar to serve"),
    Variable("ENGINE_DIR", "engine_dir", Path, "folder of the engine, where there is no COG_WEIGHTS"),
    Variable("SYSTEM_PROMPT", "system_prompt", str, "system prompt of requests that bring none"),
    Variable("PROMPT_TEMPLATE", "prompt_template", str, "prompt template of requests that bring none"),
    Variable(
        "STOP_SEQUENCES", "stop_sequences", str, "stop sequences, by commas, of requests that bring none"
    ),
    Variable("END_ID", "end_id", _at_least(int, 0), "token that ends a text; else the engine's own, else 2"),
    Variable("PAD_ID", "pad_id", _at_least(int, 0), "padding token; else the engine's own, else END_ID"),
    Variable(
        "MAX_SEQUENCE_LENGTH",
        "max_sequence_length",
        _at_least(int, 2),
        "most tokens of prompt and output; else the engine's own",
    ),
    Variable("WORLD_SIZE", "world_size", _at_least(int, 1), "GPUs; may only agree with what the engine says"),
    Variable(
        "LOG_PERFORMANCE_METRICS", "log_performance_metrics", _boolean, "log performance of every request"
    ),
    Variable("COG_TRITON_CACHE", "cache_dir", Path, "folder for downloaded engines and logs"),
    Variable(
        "COG_TRITON_CACHE_LIMIT_GIB",
        "cache_limit_gib",
        _at_least(float, 0),
        "GiB of downloaded engines to keep: the longest unused go first, those in use stay; else all",
    ),
    Variable(
        ENGINE_PYTHON_VARIABLE,
        "engine_python",
        _program,
        "Python of the engine environment",
    ),
    Variable(
        "TRITONSERVER_BACKEND_DIR",
        "triton_backend_dir",
        _directory,
        "more Triton backends, say tensorrtllm",
    ),
    Variable("TRITON_TIMEOUT", "triton_timeout_s", _at_least(float, 0.001), "seconds of silence until E2101"),
    Variable(
        "TRITON_START_TIMEOUT",
        "triton_start_timeout_s",
        _at_least(float, 0.001),
        "seconds that Triton has to become ready, engine loading included",
    ),
    Variable("TRITON_HOST", "triton_host", str, "address that Triton listens on"),
    Variable("TRITON_HTTP_PORT", "triton_http_port", _port, "Triton's HTTP port"),
    Variable("TRITON_GRPC_PORT", "triton_grpc_port", _port, "Triton's gRPC port"),
    Variable("TRITON_METRICS_PORT", "triton_metrics_port", _port, "Triton's Prometheus port"),
)
"""Every environment variable of the runner, once; the README's table is made of them."""

_MAY_BE_BLANK = ("SYSTEM_PROMPT", "STOP_SEQUENCES")
"""Set to nothing, these mean nothing; others set to nothing count as unset."""


def load_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from the environment (by default this process's) and the YAML that it names."""
    environment = os.environ if environment is None else environment
    config = read_server_config(environment)
    values: dict[str, Any] = {
        key: _text(f"instantiate.{key}", config[key])
        for key in ("weights", "system_prompt", "prompt_template")
        if config.get(key) not in (None, "")
    }
    values |= {
        "server": server_arguments(config),
        "cache_dir": _default_cache_dir(environment),
        "engine_python": engine_python(environment),
    }
    for variable in VARIABLES:
        if variable.name in environment and (environment[variable.name] or variable.name in _MAY_BE_BLANK):
            values[variable.field] = _parse(variable, environment[variable.name])
    settings = Settings(**values)
    _check_template(settings.prompt_template)
    return settings


def _check_template(template: str) -> None:
    try:
        format_prompt(template, prompt="hi", system_prompt="")
    except CodedError as exc:
        expected = "a Python format string with the field {prompt} and, at most, {system_prompt}"
        raise InvalidSetting(name="PROMPT_TEMPLATE", expected=expected, value=template) from exc


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise InvalidSetting(name=name, expected="a text", value=value)
    return value


def _parse(variable: Variable, text: str) -> Any:
    """The variable's value; one that does not parse is E1006."""
    try:
        return variable.parse(text)
    except ValueError as exc:
        raise InvalidSetting(name=variable.name, expected=str(exc), value=text) from exc


def _default_cache_dir(environment: Mapping[str, str]) -> Path:
    home = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/tmp")) / ".cache"  # noqa: S108
    return Path(home) / "cog-triton"
