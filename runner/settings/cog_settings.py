"""Environment variables of Cog's server, which ignores an invalid value or ends with a traceback."""

import re
from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from runner.settings.fields import Port, checked, variable, variables_of

_ONLY_HERE = ("127.0.0.1", "localhost", "::1")
_NUMBER = re.compile(r"[0-9]{1,18}(\.[0-9]{1,18})?")


def _as_cog_reads_it(value: object) -> object:
    """Reject spaces, underscores and other digits: Python's parsers of numbers take them, Cog's do not."""
    if isinstance(value, str) and not _NUMBER.fullmatch(value):
        raise ValueError("a number")
    return value


def _yes_or_no(value: object) -> object:
    if isinstance(value, str) and value.lower() not in ("1", "true", "yes", "0", "false", "no"):
        raise ValueError("true or false")
    return value


_Digits = BeforeValidator(_as_cog_reads_it)
_YesOrNo = Annotated[bool, BeforeValidator(_yes_or_no)]
_Sampler = Literal[
    "always_on",
    "always_off",
    "traceidratio",
    "parentbased_always_on",
    "parentbased_always_off",
    "parentbased_traceidratio",
]
_Share = Annotated[float, Field(ge=0, le=1), _Digits]


class CogSettings(BaseModel):
    """Settings of Cog. NOTE: each variable is passed to Cog as it is; these fields check it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    port: Annotated[Port, _Digits] = variable("PORT", 5000, "Cog's port")
    max_concurrency: Annotated[int, _Digits] = variable(
        "COG_MAX_CONCURRENCY",
        64,
        "maximum number of predictions at once; "
        "[at most 511](reliability.md#limits-of-cog-0231) where clients stream",
        ge=1,
        le=10_000,
    )
    setup_timeout_s: Annotated[int, _Digits] | None = variable(
        "COG_SETUP_TIMEOUT", None, "maximum seconds of the start; default: no limit", ge=1
    )
    log_level: Literal["debug", "info", "warn", "warning", "error"] = variable(
        "COG_LOG_LEVEL", "info", "what Cog logs: debug, info, warn, warning or error"
    )
    webhook_interval_s: Annotated[float, _Digits] = variable(
        "COG_THROTTLE_RESPONSE_INTERVAL", 0.5, "minimum seconds between two webhooks of a prediction", ge=0
    )
    stream_history_events: Annotated[int, _Digits] = variable(
        "COG_STREAM_HISTORY_CAPACITY", 1024, "events of a stream that a late client still gets", ge=0
    )
    tokio_threads: Annotated[int, _Digits] = variable(
        "TOKIO_WORKER_THREADS",
        1,
        "threads of Cog's server; with more, it rejects some simultaneous requests",
        ge=1,
        le=1024,
    )
    is_tracing_configured: _YesOrNo = variable(
        "COG_TRACE_CONFIGURED", False, "Cog traces; cog-triton sets it where a collector is named"
    )
    is_tracing_enabled: _YesOrNo = variable("COG_TRACE_ENABLED", True, "Cog's part of the traces")
    trace_sampler: _Sampler = variable(
        "COG_TRACE_SAMPLER", "parentbased_always_on", "sampler of Cog's part of the traces"
    )
    trace_sampler_share: _Share = variable(
        "COG_TRACE_SAMPLER_ARG", 1.0, "share of the traces that a sampler with traceidratio keeps"
    )
    otel_sampler: _Sampler | None = variable("OTEL_TRACES_SAMPLER", None, "sampler of all traces")
    otel_sampler_share: _Share = variable(
        "OTEL_TRACES_SAMPLER_ARG", 1.0, "as COG_TRACE_SAMPLER_ARG, for all traces"
    )


COG_VARIABLES = variables_of(CogSettings)


def load_cog_settings(environment: Mapping[str, str]) -> CogSettings:
    """Read Cog's settings. Raises E1006, also for an empty value: Cog does not treat one as unset."""
    values = {field: environment[name] for name, field in COG_VARIABLES.items() if name in environment}
    return checked(CogSettings, values, {})


def open_port_warning(host: str, port: int) -> str | None:
    """Return a warning if there are API_KEYS and others can reach Cog at ``host``, which has no keys."""
    if host in _ONLY_HERE:
        return None
    return (
        f"warning: API_KEYS does not protect Cog's port {port}, which listens at {host}; let it listen at "
        "127.0.0.1 (--host), or keep others from it by a firewall or proxy"
    )
