"""Settings of the API server."""

from typing import Literal

from pydantic import BaseModel

from runner.settings.api_keys import KeyTexts
from runner.settings.fields import Paths, Seconds, Texts, variable

_PROCESSORS_EACH = 4
_MOST_BY_DEFAULT = 4


class APISettings(BaseModel):
    openai_host: str = variable(
        "OPENAI_HOST",
        "0.0.0.0",  # noqa: S104 - as TRITON_HOST
        "address that the OpenAI-compatible API listens on",
    )
    openai_port: int = variable(
        "OPENAI_PORT", 9000, "port of the OpenAI-compatible API; 0 turns it off", ge=0, le=65535
    )
    openai_models: Texts = variable(
        "OPENAI_MODELS",
        (),
        "comma-separated names of the served model; default: the model's id, else the kind of engine",
    )
    api_keys: KeyTexts = variable(
        "API_KEYS",
        (),
        "comma-separated API keys, one of which a request must have; old name: OPENAI_API_KEYS; "
        "default: no key needed",
        repr=False,
    )
    admin_api_keys: KeyTexts = variable(
        "ADMIN_API_KEYS",
        (),
        "comma-separated keys of administrators, one of which requests to load and unload LoRA adapters, to "
        "sleep and to wake must have; default: such requests are refused",
        repr=False,
    )
    lora_dirs: Paths = variable(
        "LORA_DIRS",
        (),
        "comma-separated folders of LoRA adapters that may be loaded while the engine serves; default: none",
    )
    router_protocol: Literal["vllm"] | None = variable(
        "ROUTER_PROTOCOL",
        None,
        "vllm: offer what routers of vLLM, llm-d and the Gateway API inference extension ask of a server: "
        "prompts as token ids, facts and metrics by vLLM's names; default: not offered",
    )
    openai_cors_origins: Texts = variable(
        "OPENAI_CORS_ORIGINS", (), "comma-separated origins whose web pages may send requests; * for all"
    )
    openai_processes: int = variable(
        "OPENAI_PROCESSES",
        ...,
        "processes of the OpenAI-compatible API; default: one for every four processors, at most 4",
        ge=1,
        le=64,
    )
    openai_max_requests: int = variable(
        "OPENAI_MAX_REQUESTS", 1024, "maximum number of texts in progress; more get 429", ge=1
    )
    openai_max_body_bytes: int = variable(
        "OPENAI_MAX_BODY_BYTES", 8 << 20, "maximum size of a request body", ge=1
    )
    image_urls: Literal["data", "public"] = variable(
        "IMAGE_URLS",
        "data",
        "URLs of images in messages: data (data URLs only), or public (also those of the internet)",
    )
    openai_max_body_values: int = variable(
        "OPENAI_MAX_BODY_VALUES",
        300_000,
        "maximum number of keys and values in a request body; an object or a list counts as 4, a key as 3",
        ge=1,
    )
    openai_max_header_bytes: int = variable(
        "OPENAI_MAX_HEADER_BYTES", 64 << 10, "maximum size of a request's line and headers", ge=1
    )
    openai_max_connections: int = variable(
        "OPENAI_MAX_CONNECTIONS",
        4096,
        "maximum number of connections; above it, those that wait for their clients are closed",
        ge=1,
    )
    openai_receive_timeout_s: Seconds = variable(
        "OPENAI_RECEIVE_TIMEOUT", 60.0, "maximum seconds until a request has arrived"
    )
    openai_stream_keep_alive_s: float = variable(
        "OPENAI_STREAM_KEEP_ALIVE",
        15.0,
        "maximum seconds of silence in a stream: then a comment is sent (Messages: a ping); 0: no limit",
        ge=0,
        allow_inf_nan=False,
    )
    allowed_hosts: Texts = variable(
        "ALLOWED_HOSTS",
        (),
        "comma-separated host names that the OpenAI-compatible API answers for, besides loopback ones; * for "
        "all; default: only loopback ones if it listens on loopback and has no keys, else all",
    )
    openai_timeout_s: Seconds = variable("OPENAI_TIMEOUT", 3600.0, "maximum seconds of a request")


def default_processes(num_processors: int) -> int:
    """Return the number of API processes. One is enough until hundreds of requests begin together."""
    return max(1, min(num_processors // _PROCESSORS_EACH, _MOST_BY_DEFAULT))
