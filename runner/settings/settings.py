"""The runner's settings, parsed once from the environment and the YAML file that it names.

An invalid value is E1006, which names the variable. Variables override the YAML file.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from engine.machine.python import engine_python
from errors.coded_error import CodedError
from errors.settings import InvalidSetting
from runner.settings.ports import TritonPorts
from runner.settings.prompt_template import format_prompt
from runner.settings.server_config import ServerArguments, read_server_config, server_arguments
from runner.settings.variables import VARIABLES, Variable

DEFAULT_ENGINE_DIR = "/src/triton_model_repo/tensorrt_llm/1"


class Settings(BaseModel):
    """All settings of the runner. ``VARIABLES`` has their environment variables and meanings."""

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
    triton_hang_timeout_s: float = 30.0
    stop_grace_s: float = 25.0
    failure_limit: int = 5
    failure_window_s: float = 600.0
    flight_recorder_dir: Path | None = None
    triton_host: str = "0.0.0.0"  # noqa: S104 - the user of an image decides which ports to publish
    triton_http_port: int = 8000
    triton_grpc_port: int = 8001
    triton_metrics_port: int = 8002
    log_format: str | None = None
    otlp_endpoint: str | None = None
    otlp_traces_endpoint: str | None = None
    otlp_protocol: str = "http/protobuf"
    is_telemetry_disabled: bool = False
    service_name: str = "cog-triton"
    chat_template: Path | None = None
    openai_host: str = "0.0.0.0"  # noqa: S104 - as triton_host
    openai_port: int = 9000
    openai_models: tuple[str, ...] = ()
    openai_api_keys: tuple[str, ...] = Field(default=(), repr=False)
    openai_cors_origins: tuple[str, ...] = ()
    openai_max_requests: int = 1024
    openai_max_body_bytes: int = 8 << 20
    openai_timeout_s: float = 3600.0
    engine_python: str
    server: ServerArguments = {}

    @property
    def otlp_traces_url(self) -> str | None:
        """URL to which traces are sent, by OpenTelemetry's rules; None: tracing is disabled."""
        if self.is_telemetry_disabled or not (self.otlp_traces_endpoint or self.otlp_endpoint):
            return None
        return self.otlp_traces_endpoint or f"{str(self.otlp_endpoint).rstrip('/')}/v1/traces"

    @property
    def triton_ports(self) -> TritonPorts:
        return TritonPorts(
            self.triton_host, self.triton_http_port, self.triton_grpc_port, self.triton_metrics_port
        )


_MAY_BE_BLANK = ("SYSTEM_PROMPT", "STOP_SEQUENCES")
"""An empty value sets these to empty; for all other variables an empty value counts as unset."""


def load_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Settings from ``environment`` (default: this process's) and the YAML file that it names."""
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
    """Raises E1006 if ``text`` is not valid for the variable."""
    try:
        return variable.parse(text)
    except ValueError as exc:
        raise InvalidSetting(name=variable.name, expected=str(exc), value=text) from exc


def _default_cache_dir(environment: Mapping[str, str]) -> Path:
    home = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/tmp")) / ".cache"  # noqa: S108
    return Path(home) / "cog-triton"
