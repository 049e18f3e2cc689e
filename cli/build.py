"""Build an engine.tar."""

import argparse
from pathlib import Path

from builder.build import build
from builder.config.file import ConfigFile
from builder.model_source import find_source, is_config
from builder.plan import plan_lines
from cli.inspect import describe
from cli.progress import told_progress
from cli.serve import check_kind
from engine.words import in_words
from errors.requests import InvalidInput


def source_of(options: argparse.Namespace) -> str | ConfigFile:
    """The config that is named, or the one that stands for the model that is."""
    named: str = options.config
    check_kind(named, options.kind)
    return named if is_config(named) else find_source(named, kind=options.kind) or named


def run(options: argparse.Namespace) -> int:
    if options.dry_run:
        for line in plan_lines(source_of(options)):
            print(line)
        return 0
    if options.output.endswith("/"):
        raise InvalidInput(name="--output", expected="a file's path", value=options.output)
    output = Path(options.output)
    with told_progress() as (report, progress):
        manifest = build(source_of(options), output, report=report, progress=progress)
    print(describe(manifest))
    print(f"{'written':<12}{output} ({in_words(output.stat().st_size)})")
    return 0
