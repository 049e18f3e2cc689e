"""The environment variables of the runner."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.machine.python import ENGINE_PYTHON_VARIABLE
from runner.observability.logs import VARIABLE as LOG_FORMAT
from runner.settings.variable_values import (
    at_least,
    boolean,
    existing_directory,
    existing_file,
    http_url,
    log_format,
    otlp_protocol,
    port,
    port_or_none,
    program,
    texts,
)


@dataclass(frozen=True)
class Variable:
    """One environment variable: the setting it sets, how its text is read, and what it means."""

    name: str
    field: str
    parse: Callable[[str], Any]
    meaning: str


VARIABLES = (
    Variable("COG_WEIGHTS", "weights", str, "URL or path of the engine.tar to serve"),
    Variable("ENGINE_DIR", "engine_dir", Path, "folder of the engine, where there is no COG_WEIGHTS"),
    Variable("SYSTEM_PROMPT", "system_prompt", str, "system prompt of requests that bring none"),
    Variable("PROMPT_TEMPLATE", "prompt_template", str, "prompt template of requests that bring none"),
    Variable(
        "STOP_SEQUENCES", "stop_sequences", str, "stop sequences, by commas, of requests that bring none"
    ),
    Variable("END_ID", "end_id", at_least(int, 0), "token that ends a text; else the engine's own, else 2"),
    Variable("PAD_ID", "pad_id", at_least(int, 0), "padding token; else the engine's own, else END_ID"),
    Variable(
        "MAX_SEQUENCE_LENGTH",
        "max_sequence_length",
        at_least(int, 2),
        "most tokens of prompt and output; else the engine's own",
    ),
    Variable("WORLD_SIZE", "world_size", at_least(int, 1), "GPUs; may only agree with what the engine says"),
    Variable(
        "LOG_PERFORMANCE_METRICS", "log_performance_metrics", boolean, "log performance of every request"
    ),
    Variable(
        LOG_FORMAT,
        "log_format",
        log_format,
        "json: each line a JSON object with the request's id; console: text; else Cog's own JSON around text",
    ),
    Variable("COG_TRITON_CACHE", "cache_dir", Path, "folder for downloaded engines and logs"),
    Variable(
        "COG_TRITON_CACHE_LIMIT_GIB",
        "cache_limit_gib",
        at_least(float, 0),
        "GiB of downloaded engines to keep: the longest unused go first, those in use stay; else all",
    ),
    Variable(
        ENGINE_PYTHON_VARIABLE,
        "engine_python",
        program,
        "Python of the engine environment",
    ),
    Variable(
        "TRITONSERVER_BACKEND_DIR",
        "triton_backend_dir",
        existing_directory,
        "more Triton backends, say tensorrtllm",
    ),
    Variable("TRITON_TIMEOUT", "triton_timeout_s", at_least(float, 0.001), "seconds of silence until E2101"),
    Variable(
        "TRITON_START_TIMEOUT",
        "triton_start_timeout_s",
        at_least(float, 0.001),
        "seconds that Triton has to become ready, engine loading included",
    ),
    Variable(
        "TRITON_HANG_TIMEOUT",
        "triton_hang_timeout_s",
        at_least(float, 3),
        "seconds without any answer until Triton counts as hanging and is started again",
    ),
    Variable(
        "STOP_GRACE_PERIOD",
        "stop_grace_s",
        at_least(float, 0),
        "seconds that running requests have to end after SIGTERM; then they end with E2110",
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
        "folder for what is recorded of each failure; else flight-recorder in COG_TRITON_CACHE",
    ),
    Variable("TRITON_HOST", "triton_host", str, "address that Triton listens on"),
    Variable("TRITON_HTTP_PORT", "triton_http_port", port, "Triton's HTTP port"),
    Variable("TRITON_GRPC_PORT", "triton_grpc_port", port, "Triton's gRPC port"),
    Variable("TRITON_METRICS_PORT", "triton_metrics_port", port, "Triton's Prometheus port"),
    Variable(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        "otlp_endpoint",
        http_url,
        "URL of an OpenTelemetry collector for traces, by OTLP over HTTP; else none are made",
    ),
    Variable(
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT",
        "otlp_traces_endpoint",
        http_url,
        "the same, with its path, for traces alone",
    ),
    Variable("OTEL_EXPORTER_OTLP_PROTOCOL", "otlp_protocol", otlp_protocol, "how traces are sent"),
    Variable("OTEL_SDK_DISABLED", "is_telemetry_disabled", boolean, "no traces, whatever else is set"),
    Variable(
        "OTEL_SERVICE_NAME", "service_name", str, "service.name of the traces; Triton's has -triton after it"
    ),
    Variable(
        "CHAT_TEMPLATE",
        "chat_template",
        existing_file,
        "file of the chat template (Jinja); else the tokenizer's own",
    ),
    Variable("OPENAI_HOST", "openai_host", str, "address that the OpenAI-compatible API listens on"),
    Variable("OPENAI_PORT", "openai_port", port_or_none, "port of that API; 0 for none"),
    Variable(
        "OPENAI_MODELS",
        "openai_models",
        texts,
        "names of the model there, by commas; else where it came from, else its engine's kind",
    ),
    Variable("OPENAI_API_KEYS", "openai_api_keys", texts, "keys it wants one of, by commas; else none"),
    Variable(
        "OPENAI_CORS_ORIGINS",
        "openai_cors_origins",
        texts,
        "origins of web pages that may ask it, by commas; * for all",
    ),
    Variable(
        "OPENAI_MAX_REQUESTS",
        "openai_max_requests",
        at_least(int, 1),
        "most texts it generates at once; a request for more gets 429",
    ),
    Variable(
        "OPENAI_MAX_BODY_BYTES", "openai_max_body_bytes", at_least(int, 1), "most bytes of a request to it"
    ),
    Variable(
        "OPENAI_TIMEOUT", "openai_timeout_s", at_least(float, 0.001), "seconds that a request to it may take"
    ),
)
"""Every environment variable of the runner, once; the README's table is made of them."""
