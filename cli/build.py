"""``cog-triton build CONFIG -o engine.tar``: build an engine from a build config."""

from __future__ import annotations

import argparse
from pathlib import Path

from builder.build import build
from builder.plan import plan_lines
from builder.sizes.words import in_words
from cli.inspect import describe
from cli.progress import progress_on_stderr

HELP = "build an engine.tar from a build config"
DESCRIPTION = (
    "Build an engine.tar from a build config. The token for the Hugging Face Hub comes from "
    "the config, else from HF_TOKEN."
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", help="build config: a YAML file or its URL")
    parser.add_argument("-o", "--output", type=Path, default=Path("engine.tar"), help="default: %(default)s")
    parser.add_argument(
        "--dry-run", action="store_true", help="check the config, print the plan, build nothing"
    )


def run(options: argparse.Namespace) -> int:
    if options.dry_run:
        for line in plan_lines(options.config):
            print(line)
        return 0
    with progress_on_stderr() as progress:
        manifest = build(options.config, options.output, report=print, progress=progress)
    print(describe(manifest))
    print(f"{'written':<12}{options.output} ({in_words(options.output.stat().st_size)})")
    return 0
