"""``cog-triton plan CONFIG``: what a build would do, fetch and take, before it is done."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from builder.plan import plan_lines


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "plan",
        help="tell what a build would do, download and take",
        description="Check a build config, tell its commands, downloads, sizes: weights, engine, KV cache, "
        "memory and disk of the build. Of the model, config.json alone is fetched.",
    )
    parser.add_argument("config", help="build config: a YAML file or its URL")
    parser.add_argument(
        "--model-config",
        type=Path,
        metavar="FILE",
        help="the model's config.json, so that nothing is fetched",
    )
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    for line in plan_lines(options.config, model_config=options.model_config):
        print(line)
    return 0
