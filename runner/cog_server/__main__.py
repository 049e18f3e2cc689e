"""Cog's HTTP server, prepared for streams and for a graceful shutdown: ``python -m runner.cog_server``.

It takes the options of ``cog.server.http``, which it runs. Before that it prepares this process: ``shutdown``
(how it ends), ``client_sockets`` (TCP_NODELAY and more for its connections), ``json_logs``, and
``supervision.tuning``.
"""

import argparse
import os
import runpy
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from contextlib import nullcontext

from engine.machine.cog_sockets import await_turn
from errors.settings import InvalidSetting
from runner.cog_server.json_logs import flat_log
from runner.cog_server.shutdown import start_graceful_shutdown
from runner.observability.logs import JSON, log_in
from runner.observability.logs import VARIABLE as LOG_FORMAT
from runner.observability.tracing import SERVICE_NAME
from runner.settings.cog_settings import CogSettings, load_cog_settings, open_port_warning
from runner.supervision.child import Log
from runner.supervision.tuning import tune_environment

_WRONG_INPUT = 2
"""Exit code of an invalid setting."""
_ANY_HOST = "0.0.0.0"  # noqa: S104 - Cog's default
_MAX_STREAMS = 511
"""Limit of predictions: each holds one of coglet's 512 threads, and sending their output needs one."""


def warn_of_concurrency(settings: CogSettings, log: Log) -> None:
    """Warn of a limit above _MAX_STREAMS: predictions beyond it wait for a thread and seem to hang."""
    if settings.max_concurrency > _MAX_STREAMS:
        log(
            f"warning: COG_MAX_CONCURRENCY is {settings.max_concurrency}, but Cog streams {_MAX_STREAMS} "
            "predictions at once: while more run, none of the others sends its text until one ends; set it "
            f"to {_MAX_STREAMS} or less, or let clients that stream use the OpenAI-compatible API."
        )


def warn_of_open_port(environment: Mapping[str, str], arguments: Sequence[str], port: int, log: Log) -> None:
    """Warn an operator who sets API_KEYS that Cog's port has no keys."""
    has_keys = any(environment.get(name) for name in ("API_KEYS", "OPENAI_API_KEYS"))
    if has_keys and (warning := open_port_warning(_host(arguments), port)):
        log(warning)


def _host(arguments: Sequence[str]) -> str:
    options = argparse.ArgumentParser(add_help=False)
    options.add_argument("--host", default=_ANY_HOST)
    return str(options.parse_known_args(arguments)[0].host)


def switch_tracing_on(environment: MutableMapping[str, str]) -> None:
    """Set what Cog's tracing needs besides OpenTelemetry's variables, if those name an endpoint."""
    endpoints = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
    if any(environment.get(name) for name in endpoints):
        environment.setdefault("COG_TRACE_CONFIGURED", "1")
        environment.setdefault("COG_TRACE_SAMPLER", "parentbased_always_on")
        environment.setdefault("OTEL_SERVICE_NAME", SERVICE_NAME)


def main() -> None:
    if os.environ.get("NODE_RANK", "0") != "0":
        from runner.stack.follower.run import main as follow  # Few runners are not the head.

        follow(_host(sys.argv[1:]))
    log = log_in(os.environ.get(LOG_FORMAT))
    try:
        settings = load_cog_settings(os.environ)
    except InvalidSetting as exc:
        log(str(exc))
        sys.exit(_WRONG_INPUT)
    warn_of_concurrency(settings, log)
    warn_of_open_port(os.environ, sys.argv[1:], settings.port, log)
    switch_tracing_on(os.environ)
    tune_environment(os.environ)
    await_turn()
    start_graceful_shutdown(settings.port, log)
    with flat_log() if os.environ.get(LOG_FORMAT) == JSON else nullcontext():
        runpy.run_module("cog.server.http", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
