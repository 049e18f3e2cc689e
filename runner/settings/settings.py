"""Settings of the runner, from the environment and the YAML file that it names and overrides."""

import os
from collections.abc import Mapping
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, DirectoryPath, FilePath

from engine.machine.preflight import IMAGE_VARIABLE
from engine.machine.processors import usable_processors
from engine.machine.python import ENGINE_PYTHON_VARIABLE, engine_python
from engine.redact import HIDDEN
from errors.coded_error import CodedError
from errors.settings import InvalidSetting
from runner.observability.logs import VARIABLE as LOG_FORMAT
from runner.settings.api_keys import LowestPriorities
from runner.settings.api_settings import APISettings, default_processes
from runner.settings.cog_settings import CogSettings, load_cog_settings
from runner.settings.fields import (
    URL,
    Address,
    GenerationConfig,
    HeadAddress,
    Port,
    Program,
    Seconds,
    ZmqEndpoint,
    checked,
    variable,
    variables_of,
)
from runner.settings.ports import local_url
from runner.settings.prompt_template import format_prompt
from runner.settings.server_config import (
    CONFIG_VARIABLE,
    ServerArguments,
    read_server_config,
    server_arguments,
)

DEFAULT_ENGINE_DIR = "/src/triton_model_repo/tensorrt_llm/1"


class Settings(APISettings, BaseModel):
    """All settings of the runner. A field with a title is set by the environment variable of that name."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    weights: str | None = variable("COG_WEIGHTS", None, "URL or path of the engine.tar to serve")
    engine_dir: Path = variable(
        "ENGINE_DIR", Path(DEFAULT_ENGINE_DIR), "folder of the engine if COG_WEIGHTS is not set"
    )
    model_id: str | None = variable(
        "MODEL_ID",
        None,
        "model to make the engine of, without COG_WEIGHTS and ENGINE_DIR: owner/name[@revision] on the Hub, "
        "owner/name:FILE.gguf, a model's folder or a .gguf file",
    )
    system_prompt: str = variable("SYSTEM_PROMPT", "", "system prompt of requests that do not set one")
    prompt_template: str = variable(
        "PROMPT_TEMPLATE", "{prompt}", "prompt template of requests that do not set one"
    )
    max_queue_ms: int | None = variable(
        "MAX_QUEUE_MS",
        None,
        "milliseconds until the first token, after which a request fails with E1012, unless it sets "
        "max_queue_ms; default: no limit",
        ge=1,
        le=(1 << 31) - 1,
    )
    min_priority: LowestPriorities = variable(
        "MIN_PRIORITY",
        {},
        "lowest priority that requests may ask for (lower ones begin earlier), and, after commas, KEY=NUMBER "
        "for those with this API key; default: 0",
        repr=False,
    )
    stop_sequences: str | None = variable(
        "STOP_SEQUENCES", None, "comma-separated stop sequences of requests that do not set any"
    )
    end_id: int | None = variable(
        "END_ID", None, "token id that ends a text; default: the engine's, else 2", ge=0
    )
    pad_id: int | None = variable(
        "PAD_ID", None, "padding token id; default: the engine's, else END_ID", ge=0
    )
    max_sequence_length: int | None = variable(
        "MAX_SEQUENCE_LENGTH",
        None,
        "maximum number of tokens of prompt and output together; default: the engine's limit",
        ge=2,
    )
    max_prompt_bytes: int | None = variable(
        "MAX_PROMPT_BYTES",
        None,
        "maximum size of a prompt, in UTF-8; default: 32 for each token of the longest one, at least 65536",
        ge=1,
    )
    allows_special_tokens: bool = variable(
        "ALLOW_SPECIAL_TOKENS", False, "read control tokens in chat messages as such, not as plain text"
    )
    world_size: int | None = variable("WORLD_SIZE", None, "number of GPUs; must equal the engine's", ge=1)
    log_performance_metrics: bool = variable(
        "LOG_PERFORMANCE_METRICS", False, "report performance metrics for every request"
    )
    log_format: Literal["json", "console"] | None = variable(
        LOG_FORMAT,
        None,
        "json: one JSON object per line, with the request id; console: plain text; default: Cog's own JSON",
    )
    cache_dir: Path = variable(
        "COG_TRITON_CACHE",
        ...,
        "folder for downloaded engines and compiled code; default: ~/.cache/cog-triton",
    )
    cache_limit_gib: float | None = variable(
        "COG_TRITON_CACHE_LIMIT_GIB",
        None,
        "maximum GiB of downloaded engines; the least recently used are removed first; default: no limit",
        ge=0,
        allow_inf_nan=False,
    )
    engine_python: Program = variable(ENGINE_PYTHON_VARIABLE, ..., "Python of the engine environment")
    image: str | None = variable(
        IMAGE_VARIABLE,
        None,
        "the runner image's name; an image for GPUs sets it, to be refused on a wrong GPU",
    )
    triton_backend_dir: DirectoryPath | None = variable(
        "TRITONSERVER_BACKEND_DIR", None, "folder with further Triton backends, for example tensorrtllm"
    )
    triton_timeout_s: Seconds = variable(
        "TRITON_TIMEOUT", 120.0, "seconds without a token after which a request fails with E2101"
    )
    triton_start_timeout_s: Seconds = variable(
        "TRITON_START_TIMEOUT",
        300.0,
        "maximum seconds until Triton is ready once the engine is loaded, or, with NVIDIA's C++ backend, "
        "including that; also for its front, the OpenAI-compatible API and the Dynamo worker",
    )
    triton_hang_timeout_s: float = variable(
        "TRITON_HANG_TIMEOUT",
        30.0,
        "seconds without an answer to the heartbeat after which Triton is restarted",
        ge=3,
        allow_inf_nan=False,
    )
    stop_grace_s: float = variable(
        "STOP_GRACE_PERIOD",
        25.0,
        "seconds for running requests to end after SIGTERM; after that they fail with E2110",
        ge=0,
        allow_inf_nan=False,
    )
    failure_limit: int = variable(
        "FAILURE_LIMIT",
        5,
        "failures of the engine server, or failed starts of one process, within FAILURE_WINDOW after which "
        "the runner exits with code 70",
        ge=1,
    )
    failure_window_s: float = variable(
        "FAILURE_WINDOW", 600.0, "seconds; see FAILURE_LIMIT", ge=1, allow_inf_nan=False
    )
    # The user of an image decides which ports to publish.
    triton_host: str = variable("TRITON_HOST", "0.0.0.0", "address that Triton listens on")  # noqa: S104
    triton_http_port: Port = variable("TRITON_HTTP_PORT", 8000, "Triton's HTTP port")
    triton_grpc_port: Port = variable("TRITON_GRPC_PORT", 8001, "Triton's gRPC port")
    triton_metrics_port: Port = variable("TRITON_METRICS_PORT", 8002, "Triton's metrics port")
    triton_max_requests: int = variable(
        "TRITON_MAX_REQUESTS", 2048, "maximum number of Triton's requests in progress; more get 429", ge=1
    )
    triton_max_body_bytes: int = variable(
        "TRITON_MAX_BODY_BYTES", 4 << 20, "maximum size of a request to Triton", ge=1
    )
    is_triton_managed: bool = variable(
        "TRITON_MANAGEMENT", False, "open Triton's endpoints for models, shared memory, logs and traces"
    )
    otlp_endpoint: URL | None = variable(
        "OTEL_EXPORTER_OTLP_ENDPOINT",
        None,
        "URL of an OpenTelemetry collector for traces (OTLP over HTTP); default: no traces",
    )
    otlp_traces_endpoint: URL | None = variable(
        "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", None, "the same for traces only, including the path"
    )
    otlp_protocol: Literal["http/protobuf"] = variable(
        "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf", "protocol of the traces"
    )
    is_telemetry_disabled: bool = variable("OTEL_SDK_DISABLED", False, "disable traces, whatever else is set")
    service_name: str = variable(
        "OTEL_SERVICE_NAME", "cog-triton", "service.name of the traces; Triton's has -triton appended"
    )
    dynamo: Literal["file", "etcd", "kubernetes"] | None = variable(
        "DYNAMO",
        None,
        "start a worker of NVIDIA Dynamo, which its front ends find by a folder (file), etcd or Kubernetes; "
        "variables that begin with DYN_, ETCD_ or NATS_ are Dynamo's own; default: no worker",
    )
    dynamo_host: Address = variable(
        "DYNAMO_HOST",
        IPv4Address("127.0.0.1"),
        "IPv4 address that the Dynamo worker listens on, and by which front ends reach it",
    )
    dynamo_python: Program | None = variable(
        "DYNAMO_PYTHON",
        None,
        "Python that has ai-dynamo 1.6; default: that of .venv-dynamo, which `make dynamo` makes",
    )
    kv_events: ZmqEndpoint | None = variable(
        "KV_EVENTS",
        None,
        "ZeroMQ endpoint for events of the KV cache in vLLM's form (of vllm, tensorrt_llm_pytorch, paced): "
        "it listens at tcp://*:PORT and ipc:///PATH, and connects to others; default: no events",
    )
    kv_events_replay: ZmqEndpoint | None = variable(
        "KV_EVENTS_REPLAY", None, "beside KV_EVENTS: ZeroMQ endpoint for missed events"
    )
    kv_events_topic: str = variable("KV_EVENTS_TOPIC", "", "topic of the events of KV_EVENTS")
    nodes: int = variable("NODES", 1, "number of machines that hold the engine together (docs/vllm.md)", ge=1)
    node_rank: int = variable(
        "NODE_RANK",
        0,
        "number of this machine among NODES: 0 is the head, which serves; the others hold ranks only",
        ge=0,
    )
    head_address: HeadAddress | None = variable(
        "HEAD_ADDRESS",
        None,
        "HOST[:PORT] of the head in the network between NODES, where it listens for the others; "
        "default port: 29500",
    )
    chat_template: FilePath | None = variable(
        "CHAT_TEMPLATE", None, "file of the chat template (Jinja); default: the tokenizer's own"
    )
    chat_family: str | None = variable(
        "CHAT_FAMILY",
        None,
        "how the model writes tool calls and reasoning, by docs/families.md; none: neither",
    )
    generation_config: GenerationConfig = variable(
        "GENERATION_CONFIG",
        "auto",
        "auto: API requests without sampling parameters of their own have those of the engine's "
        "generation_config.json; none: they have OpenAI's defaults; a JSON object: it overrides the file's",
    )
    server: ServerArguments = {}
    cog: CogSettings = CogSettings()

    @property
    def otlp_traces_url(self) -> str | None:
        """URL to which traces are sent, by OpenTelemetry's rules; None: tracing is disabled."""
        if self.is_telemetry_disabled or not (self.otlp_traces_endpoint or self.otlp_endpoint):
            return None
        return self.otlp_traces_endpoint or f"{str(self.otlp_endpoint).rstrip('/')}/v1/traces"

    @property
    def engine_cache_dir(self) -> Path:
        """Folder for what the engine compiles: the code names a rank's device, which the nodes decide."""
        return self.cache_dir / ("engine_cache" if self.nodes == 1 else f"engine_cache/of-{self.nodes}-nodes")

    def node_options(self, start_timeout_s: float) -> dict[str, str]:
        """Return the options of an engine on several machines; none on one. ``start_timeout_s``: its own."""
        if self.nodes == 1:
            return {}
        return {
            "nodes": str(self.nodes),
            "node_rank": str(self.node_rank),
            "head_address": str(self.head_address),
            "nodes_timeout_s": str(start_timeout_s),
        }

    def engine_start_timeout_s(self, start_timeout_s: float) -> float:
        """Return the limit of an engine's start. On several machines, it first waits for the others."""
        return start_timeout_s * (1 if self.nodes == 1 else 2)

    @property
    def kv_events_config(self) -> dict[str, Any] | None:
        """vLLM's ``kv_events_config``; None: no events."""
        if self.kv_events is None:
            return None
        return {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": self.kv_events,
            "replay_endpoint": self.kv_events_replay,
            "topic": self.kv_events_topic,
            "buffer_steps": 10_000,  # Batches that are sent again on request.
            "hwm": 100_000,  # Batches that wait for a slow subscriber.
        }

    @property
    def triton_metrics_url(self) -> str:
        return f"{local_url(self.triton_host, self.triton_metrics_port)}/metrics"


VARIABLES = dict(
    sorted(variables_of(Settings).items(), key=lambda variable: variable[1] in APISettings.model_fields)
)
"""Every environment variable of the runner, with its field; those of the API last."""

_OLD_NAMES = {"OPENAI_API_KEYS": "API_KEYS"}
PATH_VARIABLES = (
    *(CONFIG_VARIABLE, "ENGINE_DIR", "COG_TRITON_CACHE", ENGINE_PYTHON_VARIABLE),
    *("TRITONSERVER_BACKEND_DIR", "CHAT_TEMPLATE", "DYNAMO_PYTHON", "COG_TRITON_SCRIPT"),
)
"""Variables whose paths are relative to the current folder."""
_MAY_BE_BLANK = ("SYSTEM_PROMPT", "STOP_SEQUENCES")
"""Variables that an empty value sets to empty; for all others it counts as unset."""


def load_settings(environment: Mapping[str, str] | None = None) -> Settings:
    """Read settings from ``environment`` (default: this process's) and the YAML file that it names."""
    environment = os.environ if environment is None else environment
    config = read_server_config(environment)
    values: dict[str, Any] = {
        "server": server_arguments(config),
        "cog": load_cog_settings(environment),
        "cache_dir": _default_cache_dir(environment),
        "engine_python": engine_python(environment),
        "openai_processes": default_processes(usable_processors()),
    }
    for key in ("weights", "system_prompt", "prompt_template"):
        if (value := config.get(key)) not in (None, ""):
            if not isinstance(value, str):
                raise InvalidSetting(name=f"instantiate.{key}", expected="a text", value=value)
            values[key] = value
    for name, field in VARIABLES.items():
        if environment.get(name) or (name in environment and name in _MAY_BE_BLANK):
            values[field] = environment[name]
    if environment.get("ENGINE_DIR") and not environment.get("COG_WEIGHTS"):
        values.pop("weights", None)
    if environment.get("ENGINE_DIR"):
        values.pop("model_id", None)
    old_names = {VARIABLES[name]: old for old, name in _OLD_NAMES.items() if environment.get(old)}
    for field, old in old_names.items():
        if field in values:
            raise InvalidSetting(
                name=old, expected=f"left out where there is {_OLD_NAMES[old]}", value=HIDDEN
            )
        values[field] = environment[old]
    settings = checked(Settings, values, old_names)
    _check_template(settings.prompt_template)
    _check_ports(settings)
    _check_nodes(settings)
    if not {"", *settings.api_keys}.issuperset(settings.min_priority):
        expected = "numbers for keys that are in API_KEYS"
        raise InvalidSetting(name="MIN_PRIORITY", expected=expected, value=HIDDEN)
    return settings


def _check_template(template: str) -> None:
    try:
        format_prompt(template, prompt="hi", system_prompt="")
    except CodedError as exc:
        expected = "a Python format string with the field {prompt} and, at most, {system_prompt}"
        raise InvalidSetting(name="PROMPT_TEMPLATE", expected=expected, value=template) from exc


def _check_nodes(settings: Settings) -> None:
    if settings.node_rank >= settings.nodes:
        expected = f"less than NODES, which is {settings.nodes}"
        raise InvalidSetting(name="NODE_RANK", expected=expected, value=settings.node_rank)
    if settings.nodes > 1 and settings.head_address is None:
        raise InvalidSetting(name="HEAD_ADDRESS", expected="HOST[:PORT] of the head of NODES", value="")


def _check_ports(settings: Settings) -> None:
    """Raise E1006 if two variables name one port."""
    ports = {name: getattr(settings, field) for name, field in VARIABLES.items() if field.endswith("_port")}
    taken = {settings.cog.port: "PORT"}
    for name, port in ports.items():
        if port and taken.setdefault(port, name) != name:
            raise InvalidSetting(name=name, expected=f"another port than {taken[port]}", value=port)


def _default_cache_dir(environment: Mapping[str, str]) -> Path:
    home = environment.get("XDG_CACHE_HOME") or Path(environment.get("HOME", "/tmp")) / ".cache"  # noqa: S108
    return Path(home) / "cog-triton"
