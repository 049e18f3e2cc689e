"""``cog-triton plan CONFIG``: what a build would do, download and need."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from builder.plan import plan_lines


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "plan",
        help="show what a build would do, download and need",
        description="Check a build config and show its commands, downloads and sizes: weights, engine, KV "
        "cache, memory and disk of the build. Downloads only config.json of the model.",
    )
    parser.add_argument("config", help="build config: a YAML file or its URL")
    parser.add_argument(
        "--model-config",
        type=Path,
        metavar="FILE",
        help="the model's config.json; then nothing is downloaded",
    )
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    for line in plan_lines(options.config, model_config=options.model_config):
        print(line)
    return 0
