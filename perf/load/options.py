"""The options of the load tests."""

from __future__ import annotations

import argparse
import json
import math
from typing import Any

from errors.requests import InvalidInput
from perf.load.plan import Plan
from perf.load.statistics import SLO_NAMES, Slo
from perf.load.targets.triton import ENSEMBLE, SLOT

COG, MOCK, TRITON, OPENAI = "cog-triton", "mock", "triton", "openai"
OUTPUT_METHODS = ("yield", "wait", "buffer", "print")
_MOCK_OPTIONS = ("tps", "output_method", "buffer_size")


def add_options(parser: argparse.ArgumentParser) -> None:
    _add_plan(parser)
    _add_workload(parser)
    _add_place(parser)
    _add_reports(parser)


def _add(group: argparse._ArgumentGroup, name: str, **more: Any) -> None:
    """Names as they are documented, with underscores; hyphens do as well, unmentioned."""
    group.add_argument(f"--{name}", **more)
    if "_" in name:
        more = {key: value for key, value in more.items() if key not in ("help", "required")}
        group.add_argument(f"--{name.replace('_', '-')}", dest=name, **more, help=argparse.SUPPRESS)


def _add_plan(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("when requests are sent")
    _add(group, "rate", type=float, required=True, help="requests per second, or requests at once")
    _add(
        group,
        "unit",
        choices=("rps", "batch", "concurrency"),
        required=True,
        help="rps: at their times, whatever the server does; batch: RATE at once, again when all are "
        "answered; concurrency: RATE at any time, each followed by another at once",
    )
    _add(group, "duration", type=float, required=True, help="seconds in which requests are sent")
    _add(group, "pause", type=float, default=1.0, help="seconds between batches")
    _add(group, "arrivals", choices=("even", "poisson"), default="even", help="times of rps")
    _add(group, "processes", type=int, default=1, help="client processes")
    _add(group, "timeout", type=float, default=600.0, help="seconds until a request has failed")


def _add_workload(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("requests")
    _add(group, "n_input_tokens", type=int, default=100, help="tokens of the prompt")
    _add(group, "n_output_tokens", type=int, default=100, help="tokens of each answer")
    _add(
        group,
        "no_fixed_length",
        action="store_true",
        help="let the model end answers before that many tokens",
    )
    _add(group, "extra", default="{}", metavar="JSON", help='more inputs, such as {"temperature": 0}')
    _add(group, "tps", type=float, help="mock: tokens per second and stream (default 100)")
    _add(
        group,
        "output_method",
        choices=OUTPUT_METHODS,
        help="mock: yield each token, buffer some, print them, or wait for all (default yield)",
    )
    _add(group, "buffer_size", type=int, help="mock: tokens that are buffered")


def _add_place(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("the server")
    _add(
        group,
        "target",
        help="cog-triton, mock, triton, openai, or a model on Replicate as OWNER/NAME[:VERSION] (its key is "
        "REPLICATE_API_TOKEN); default cog-triton, or mock where an option of the mock's is given",
    )
    _add(group, "url", help="where it is (default: the target's port on localhost)")
    _add(group, "protocol", choices=("json", "sse"), default="json", help="of cog-triton and mock")
    _add(
        group,
        "model",
        help=f"triton: {SLOT} (the engine slot, default) or {ENSEMBLE}; openai: the model's name",
    )
    _add(
        group,
        "api",
        choices=("completions", "chat"),
        default="completions",
        help="of openai",
    )


def _add_reports(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("reports")
    names = ", ".join(SLO_NAMES)
    _add(group, "slo", nargs="+", default=[], metavar="NAME=MS", help=f"limits for goodput: {names}")
    _add(group, "json", metavar="FILE", help="write all figures; - for the terminal, in place of the report")
    _add(group, "csv", metavar="FILE", help="write a row per request")
    _add(group, "report", metavar="FILE", help="write one HTML page with charts")


def plan_of(options: argparse.Namespace) -> Plan:
    return Plan(
        unit=options.unit,
        rate=options.rate,
        duration_s=options.duration,
        pause_s=options.pause,
        is_poisson=options.arrivals == "poisson",
        timeout_s=options.timeout,
    )


def check(options: argparse.Namespace) -> None:
    """What argparse can't see, and the target where none was named. Raises E1005."""
    for name in ("n_input_tokens", "n_output_tokens", "processes", "buffer_size", "tps", "timeout"):
        value = getattr(options, name)
        if value is not None and not 0 < value < math.inf:
            raise InvalidInput(name=name, expected="above 0", value=value)
    if not 0 <= options.pause < math.inf:
        raise InvalidInput(name="pause", expected="at least 0", value=options.pause)
    Slo.parse(options.slo)
    is_mock = any(getattr(options, name) is not None for name in _MOCK_OPTIONS)
    if options.target is None:
        options.target = MOCK if is_mock else COG
    elif is_mock and options.target != MOCK:
        raise InvalidInput(
            name="target", expected="mock with --tps, --output_method or --buffer_size", value=options.target
        )


def extra_of(options: argparse.Namespace) -> dict[str, Any]:
    try:
        extra = json.loads(options.extra)
    except ValueError:
        extra = None
    if not isinstance(extra, dict):
        raise InvalidInput(name="extra", expected="a JSON object", value=options.extra)
    return extra
