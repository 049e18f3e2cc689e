"""The environment variables of the runner, and how their texts are parsed.

A parser raises ValueError with a description of what it expects.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.machine.python import ENGINE_PYTHON_VARIABLE
from runner.observability.logs import VARIABLE as LOG_FORMAT


@dataclass(frozen=True)
class Variable:
    """One environment variable: its name, the field of ``Settings``, the parser and the documentation."""

    name: str
    field: str
    parse: Callable[[str], Any]
    meaning: str


def at_least(number: type[int] | type[float], minimum: float) -> Callable[[str], Any]:
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


def port(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 65535:
        raise ValueError("a port, 1 to 65535")
    return int(text)


def port_or_none(text: str) -> int:
    if text == "0":
        return 0
    try:
        return port(text)
    except ValueError:
        raise ValueError("a port, 1 to 65535, or 0 for none") from None


def texts(text: str) -> tuple[str, ...]:
    return tuple(filter(None, map(str.strip, text.split(","))))


def existing_file(text: str) -> Path:
    if not Path(text).is_file():
        raise ValueError("a file that exists")
    return Path(text)


def boolean(text: str) -> bool:
    if text.lower() not in ("1", "0", "true", "false", "yes", "no", "on", "off"):
        raise ValueError("true or false")
    return text.lower() in ("1", "true", "yes", "on")


def existing_directory(text: str) -> Path:
    if not Path(text).is_dir():
        raise ValueError("a folder that exists")
    return Path(text)


def http_url(text: str) -> str:
    if not re.fullmatch(r"https?://[^/\s,]+\S*", text):
        raise ValueError("an http or https URL")
    return text


def otlp_protocol(text: str) -> str:
    if text != "http/protobuf":
        raise ValueError("http/protobuf, the only one that the runner speaks, or unset")
    return text


def log_format(text: str) -> str:
    if text not in ("json", "console"):
        raise ValueError("json or console")
    return text


def program(text: str) -> str:
    if not os.access(text, os.X_OK) or Path(text).is_dir():
        raise ValueError("the path of a Python that can be run")
    return text


VARIABLES = (
    Variable("COG_WEIGHTS", "weights", str, "URL or path of the engine.tar to serve"),
    Variable("ENGINE_DIR", "engine_dir", Path, "folder of the engine if COG_WEIGHTS is not set"),
    Variable("SYSTEM_PROMPT", "system_prompt", str, "system prompt of requests that do not set one"),
    Variable("PROMPT_TEMPLATE", "prompt_template", str, "prompt template of requests that do not set one"),
    Variable(
        "STOP_SEQUENCES",
        "stop_sequences",
        str,
        "comma-separated stop sequences of requests that do not set any",
    ),
    Variable(
        "END_ID", "end_id", at_least(int, 0), "token id that ends a text; default: the engine's, else 2"
    ),
    Variable("PAD_ID", "pad_id", at_least(int, 0), "padding token id; default: the engine's, else END_ID"),
    Variable(
        "MAX_SEQUENCE_LENGTH",
        "max_sequence_length",
        at_least(int, 2),
        "maximum number of tokens of prompt and output together; default: the engine's limit",
    ),
    Variable("WORLD_SIZE", "world_size", at_least(int, 1), "number of GPUs; must equal the engine's"),
    Variable(
        "LOG_PERFORMANCE_METRICS",
        "log_performance_metrics",
        boolean,
        "report performance metrics for every request",
    ),
    Variable(
        LOG_FORMAT,
        "log_format",
        log_format,
        "json: one JSON object per line, with the request id; console: plain text; default: Cog's own JSON",
    ),
    Variable(
        "COG_TRITON_CACHE",
        "cache_dir",
        Path,
        "folder for downloaded engines and compiled code; default: ~/.cache/cog-triton",
    ),
    Variable(
        "COG_TRITON_CACHE_LIMIT_GIB",
        "cache_limit_gib",
        at_least(float, 0),
        "maximum GiB of downloaded engines; the least recently used are removed first; default: no limit",
    ),
    Variable(ENGINE_PYTHON_VARIABLE, "engine_python", program, "Python of the engine environment"),
    Variable(
        "TRITONSERVER_BACKEND_DIR",
        "triton_backend_dir",
        existing_directory,
        "folder with further Triton backends, for example tensorrtllm",
    ),
    Variable(
        "TRITON_TIMEOUT",
        "triton_timeout_s",
        at_least(float, 0.001),
        "seconds without a token after which a request fails with E2101",
    ),
    Variable(
        "TRITON_START_TIMEOUT",
        "triton_start_timeout_s",
        at_least(float, 0.001),
        "maximum seconds until Triton is ready, including the loading of the engine",
    ),
    Variable(
        "TRITON_HANG_TIMEOUT",
        "triton_hang_timeout_s",
        at_least(float, 3),
        "seconds without an answer to the heartbeat after which Triton is restarted",
    ),
    Variable(
        "STOP_GRACE_PERIOD",
        "stop_grace_s",
        at_least(float, 0),
        "seconds for running requests to end after SIGTERM; after that they fail with E2110",
    ),
    Variable(
        "FAILURE_LIMIT",
        "failure_limit",
        at_least(int, 1),
        "failures of Triton or the engine within FAILURE_WINDOW after which the runner exits with code 70",
    ),
    Variable("FAILURE_WINDOW", "failure_window_s", at_least(float, 1), "seconds; see FAILURE_LIMIT"),
    Variable(
        "FLIGHT_RECORDER_DIR",
        "flight_recorder_dir",
        Path,
        "folder for records of failures; default: flight-recorder in COG_TRITON_CACHE",
    ),
    Variable("TRITON_HOST", "triton_host", str, "address that Triton listens on"),
    Variable("TRITON_HTTP_PORT", "triton_http_port", port, "Triton's HTTP port"),
    Variable("TRITON_GRPC_PORT", "triton_grpc_port", port, "Triton's gRPC port"),
    Variable("TRITON_METRICS_PORT", "triton_metrics_port", port, "Triton's metrics port"),
    Variable(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "otlp_endpoint",
        http_url,
        "URL of an OpenTelemetry collector for traces (OTLP over HTTP); default: no traces",
    ),
    Variable(
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "otlp_traces_endpoint",
        http_url,
        "the same for traces only, including the path",
    ),
    Variable("OTEL_EXPORTER_OTLP_PROTOCOL", "otlp_protocol", otlp_protocol, "protocol of the traces"),
    Variable("OTEL_SDK_DISABLED", "is_telemetry_disabled", boolean, "disable traces, whatever else is set"),
    Variable(
        "OTEL_SERVICE_NAME", "service_name", str, "service.name of the traces; Triton's has -triton appended"
    ),
    Variable(
        "CHAT_TEMPLATE",
        "chat_template",
        existing_file,
        "file of the chat template (Jinja); default: the tokenizer's own",
    ),
    Variable("OPENAI_HOST", "openai_host", str, "address that the OpenAI-compatible API listens on"),
    Variable("OPENAI_PORT", "openai_port", port_or_none, "port of the OpenAI-compatible API; 0 turns it off"),
    Variable(
        "OPENAI_MODELS",
        "openai_models",
        texts,
        "comma-separated names of the served model; default: the model's id, else the kind of engine",
    ),
    Variable(
        "OPENAI_API_KEYS",
        "openai_api_keys",
        texts,
        "comma-separated API keys, one of which a request must have; default: no key needed",
    ),
    Variable(
        "OPENAI_CORS_ORIGINS",
        "openai_cors_origins",
        texts,
        "comma-separated origins whose web pages may send requests; * for all",
    ),
    Variable(
        "OPENAI_MAX_REQUESTS",
        "openai_max_requests",
        at_least(int, 1),
        "maximum number of texts in progress; more get 429",
    ),
    Variable(
        "OPENAI_MAX_BODY_BYTES", "openai_max_body_bytes", at_least(int, 1), "maximum size of a request body"
    ),
    Variable("OPENAI_TIMEOUT", "openai_timeout_s", at_least(float, 0.001), "maximum seconds of a request"),
)
"""Every environment variable of the runner; the table in docs/settings.md is generated from it."""
