"""The options of the load tests."""

import argparse
import json
from contextlib import suppress

from errors.requests import InvalidInput
from perf.load.statistics import SLO_NAMES
from runner.triton_server.model_names import ENSEMBLE, SLOT

COG, MOCK, TRITON, OPENAI = "cog-triton", "mock", "triton", "openai"
_MOCK_OPTIONS = ("tps", "output_method", "buffer_size")
_MOST = 10_000_000
"""Limit of lengths and speeds; a prompt of that many tokens is made in memory."""


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("when requests are sent").add_argument
    add("--rate", type=float, required=True, help="requests per second (rps), or number of requests at once")
    units = (
        "rps: send each request at its scheduled time, even if earlier ones have no answer yet; batch: send "
        "RATE requests at once, and again when all are answered; "
    )
    units += "concurrency: keep RATE requests in flight"
    add("--unit", choices=("rps", "batch", "concurrency"), required=True, help=units)
    add("--duration", type=float, required=True, help="seconds in which requests are sent")
    add("--pause", type=float, default=1.0, help="seconds between batches")
    arrivals = "rps: send at even intervals, or at those of a Poisson process"
    add("--arrivals", choices=("even", "poisson"), default="even", help=arrivals)
    add("--timeout", type=float, default=600.0, help="seconds after which a request counts as failed")

    add = parser.add_argument_group("requests").add_argument
    add("--n_input_tokens", type=int, default=100, help="tokens of the prompt")
    add("--n_output_tokens", type=int, default=100, help="tokens of each answer")
    add("--no_fixed_length", action="store_true", help="let the model end answers before that many tokens")
    add("--extra", default="{}", metavar="JSON", help='more inputs, such as {"temperature": 0}')
    add("--tps", type=float, help="mock: tokens per second and stream (default 100)")
    method_help = "mock: yield each token, buffer some, print them, or wait for all (default yield)"
    add("--output_method", choices=("yield", "wait", "buffer", "print"), help=method_help)
    add("--buffer_size", type=int, help="mock: tokens that are buffered")

    add = parser.add_argument_group("the server").add_argument
    targets = "cog-triton, mock, triton, openai, or a model on Replicate as OWNER/NAME[:VERSION] (its key is "
    targets += "REPLICATE_API_TOKEN); default cog-triton, or mock where an option of the mock's is given"
    add("--target", help=targets)
    add("--url", help="the server's URL (default: the target's port on localhost)")
    add("--protocol", choices=("json", "sse"), default="json", help="cog-triton and mock: form of the output")
    add("--model", help=f"triton: {SLOT} (the engine slot, default) or {ENSEMBLE}; openai: the model's name")
    add("--api", choices=("completions", "chat"), default="completions", help="openai: the endpoint")

    add = parser.add_argument_group("reports").add_argument
    names = ", ".join(SLO_NAMES)
    add("--slo", nargs="+", default=[], metavar="NAME=MS", help=f"limits for goodput: {names}")
    add("--json", metavar="FILE", help="write all figures; - for the terminal, in place of the report")
    add("--csv", metavar="FILE", help="write a row per request")
    add("--report", metavar="FILE", help="write one HTML page with charts")


def check(options: argparse.Namespace) -> None:
    """Check what neither argparse nor a plan checks; set the target if none was named. Raises E1005."""
    with suppress(ValueError):
        options.extra = json.loads(options.extra)
    if not isinstance(options.extra, dict):
        raise InvalidInput(name="extra", expected="a JSON object", value=options.extra)
    for name in ("n_input_tokens", "n_output_tokens", "buffer_size", "tps"):
        value = getattr(options, name)
        if value is not None and not 0 < value <= _MOST:
            raise InvalidInput(name=name, expected=f"above 0 and at most {_MOST}", value=value)
    is_mock = any(getattr(options, name) is not None for name in _MOCK_OPTIONS)
    if options.target is None:
        options.target = MOCK if is_mock else COG
    elif is_mock and options.target != MOCK:
        raise InvalidInput(
            name="target", expected="mock with --tps, --output_method or --buffer_size", value=options.target
        )
