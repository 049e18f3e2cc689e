"""The runner's configuration: environment and server YAML, parsed here once, at the edge.

A value that does not fit is E1006, naming the variable or key. The environment wins over the YAML.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict

from engine.python import ENGINE_PYTHON_VARIABLE, engine_python
from errors.prompt import InvalidSetting

T = TypeVar("T")

DEFAULT_ENGINE_DIR = "/src/triton_model_repo/tensorrt_llm/1"
DEFAULT_CONFIG = "config.yaml"

_INSTANTIATE_KEYS = ("base_model", "staging_dest", "weights", "system_prompt", "prompt_template", "server")
_TOP_KEYS = ("instantiate", "build", "version", *_INSTANTIATE_KEYS)
_SERVER_MODELS = ("preprocessing", "tensorrt_llm", "postprocessing", "ensemble", "tensorrt_llm_bls")
_SECTION_KEYS = ("template", "output", "args")

ServerArguments = dict[str, dict[str, Any]]
"""``instantiate.server.<model>.args``, by model."""


class Settings(BaseModel):
    """Everything the runner reads from outside a request. Units are in the names."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    engine_dir: Path = Path(DEFAULT_ENGINE_DIR)
    weights: str | None = None
    """URL or path of an engine.tar; None: the engine is what ``engine_dir`` holds."""
    cache_dir: Path
    system_prompt: str = ""
    prompt_template: str = "{prompt}"
    stop_sequences: str | None = None
    end_id: int | None = None
    pad_id: int | None = None
    max_sequence_length: int | None = None
    """In tokens, prompt and output; None: the engine's own."""
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


def load_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from the environment (by default this process's) and the YAML that it names."""
    environment = os.environ if environment is None else environment
    config = _read_config(environment)
    read = _Reader(environment)
    values: dict[str, Any] = {
        "weights": config.get("weights"),
        "system_prompt": config.get("system_prompt"),
        "prompt_template": config.get("prompt_template"),
        "server": _server_arguments(config),
        "cache_dir": _cache_dir(environment),
    }
    values |= {
        "engine_dir": read("ENGINE_DIR", Path),
        "weights": read("COG_WEIGHTS", str) or values["weights"],
        "system_prompt": environment.get("SYSTEM_PROMPT", values["system_prompt"]),
        "prompt_template": read("PROMPT_TEMPLATE", str) or values["prompt_template"],
        "stop_sequences": read("STOP_SEQUENCES", str),
        "end_id": read("END_ID", _at_least(int, 0)),
        "pad_id": read("PAD_ID", _at_least(int, 0)),
        "max_sequence_length": read("MAX_SEQUENCE_LENGTH", _at_least(int, 2)),
        "world_size": read("WORLD_SIZE", _at_least(int, 1)),
        "log_performance_metrics": read("LOG_PERFORMANCE_METRICS", _boolean),
        "triton_backend_dir": read("TRITONSERVER_BACKEND_DIR", _directory),
        "triton_timeout_s": read("TRITON_TIMEOUT", _at_least(float, 0.001)),
        "triton_start_timeout_s": read("TRITON_START_TIMEOUT", _at_least(float, 0.001)),
        "triton_host": read("TRITON_HOST", str),
        "triton_http_port": read("TRITON_HTTP_PORT", _port),
        "triton_grpc_port": read("TRITON_GRPC_PORT", _port),
        "triton_metrics_port": read("TRITON_METRICS_PORT", _port),
        "engine_python": read(ENGINE_PYTHON_VARIABLE, _program) or engine_python(environment),
    }
    return Settings(**{key: value for key, value in values.items() if value is not None})


class _Reader:
    """Reads one variable; an unset or empty one is None, one that does not parse is E1006."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment

    def __call__(self, name: str, parse: Callable[[str], T]) -> T | None:
        text = (
            self._environment.get(name, "").strip() if parse is not str else self._environment.get(name, "")
        )
        if not text:
            return None
        try:
            return parse(text)
        except ValueError as exc:
            raise InvalidSetting(name=name, expected=str(exc), value=text) from exc


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


def _cache_dir(environment: Mapping[str, str]) -> Path:
    if path := environment.get("COG_TRITON_CACHE"):
        return Path(path)
    home = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/tmp")) / ".cache"  # noqa: S108
    return Path(home) / "cog-triton"


def _read_config(environment: Mapping[str, str]) -> dict[str, Any]:
    """The ``instantiate`` section of the server YAML (older files have its keys at top level)."""
    named = environment.get("COG_TRITON_CONFIG", "")
    path = Path(named or DEFAULT_CONFIG)
    if not named and not path.is_file():
        return {}
    try:
        document = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as exc:
        reason = " ".join(str(exc).split())
        raise InvalidSetting(
            name="COG_TRITON_CONFIG", expected=f"a readable YAML file ({reason})", value=str(path)
        ) from exc
    document = _mapping(path.name, document, (*_TOP_KEYS, *_SERVER_MODELS))
    if "instantiate" in document:
        return _mapping("instantiate", document["instantiate"], _INSTANTIATE_KEYS)
    server = {key: value for key, value in document.items() if key in _SERVER_MODELS}
    rest = {key: value for key, value in document.items() if key in _INSTANTIATE_KEYS}
    return {"server": server, **rest} if server else rest


def _server_arguments(config: Mapping[str, Any]) -> ServerArguments:
    sections = _mapping("instantiate.server", config.get("server"), _SERVER_MODELS)
    arguments: ServerArguments = {}
    for model, section in sections.items():
        name = f"instantiate.server.{model}"
        arguments[model] = _mapping(f"{name}.args", _mapping(name, section, _SECTION_KEYS).get("args"), None)
    return arguments


def _mapping(name: str, value: object, keys: tuple[str, ...] | None) -> dict[str, Any]:
    """``value`` as a mapping (None: empty) whose keys are all known; otherwise E1006."""
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidSetting(name=name, expected="a mapping of keys to values", value=value)
    for key in value:
        if keys is not None and key not in keys:
            near = difflib.get_close_matches(str(key), keys, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            raise InvalidSetting(name=name, expected=f"made of {', '.join(keys)}{hint}", value=key)
    return {str(key): each for key, each in value.items()}
