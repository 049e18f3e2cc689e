"""``cog-triton metrics``: what a runner on this machine counts, as its /metrics tells it."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from errors.settings import MissingRequirement
from runner.observability.metrics_text import exposition
from runner.settings.paths import metrics_dir
from runner.settings.settings import load_settings


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "metrics",
        help="print the metrics of a runner on this machine, for Prometheus or to look at",
        description="Print all metrics of the runner on this machine whose Triton has TRITON_HTTP_PORT, in "
        "Prometheus's text format: what GET /metrics on OPENAI_PORT answers, for where that port is off.",
    )
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    settings = load_settings()
    folder = metrics_dir(settings.triton_http_port)
    if not folder.is_dir():
        raise MissingRequirement(
            what=f"a runner of this user with TRITON_HTTP_PORT {settings.triton_http_port}",
            remedy="start one with `cog-triton serve`, or set TRITON_HTTP_PORT as it has it",
        )
    sys.stdout.write(exposition(folder, settings.triton_ports.metrics_url))
    return 0
