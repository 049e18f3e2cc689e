"""Build an engine.tar from a build config or a model. The token for the Hugging Face Hub comes from the
config, else from HF_TOKEN.
"""

import argparse
from pathlib import Path

from builder.build import build
from builder.config.file import ConfigFile
from builder.model_source import find_source, is_config
from builder.plan import plan_lines
from cli.inspect import describe
from cli.progress import told_progress
from cli.serve import add_kind_argument
from engine.words import in_words

HELP = "build an engine.tar from a build config or a model"
CONFIG_HELP = "build config (a YAML file or its URL), or a model as in `serve`"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", help=CONFIG_HELP)
    add_kind_argument(parser)
    parser.add_argument("-o", "--output", type=Path, default=Path("engine.tar"), help="default: %(default)s")
    parser.add_argument(
        "--dry-run", action="store_true", help="check the config, print the plan, build nothing"
    )


def source_of(options: argparse.Namespace) -> str | ConfigFile:
    """The config that is named, or the one that stands for the model that is."""
    named: str = options.config
    return named if is_config(named) else find_source(named, kind=options.kind) or named


def run(options: argparse.Namespace) -> int:
    if options.dry_run:
        for line in plan_lines(source_of(options)):
            print(line)
        return 0
    with told_progress() as (report, progress):
        manifest = build(source_of(options), options.output, report=report, progress=progress)
    print(describe(manifest))
    print(f"{'written':<12}{options.output} ({in_words(options.output.stat().st_size)})")
    return 0
