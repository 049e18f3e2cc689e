"""Build an engine.tar."""

import argparse
from pathlib import Path
from tarfile import is_tarfile

from builder.build import build
from builder.config.file import ConfigFile, is_config_url
from builder.model_source import find_source, is_config
from builder.plan import plan_lines
from cli.inspect import describe
from cli.progress import told_progress
from cli.serve import check_kind
from engine.words import in_words
from errors.build_config import BuildConfigUnreadable
from errors.requests import InvalidInput

_IS_NEITHER = (
    "is neither a build config (a YAML file or its URL) nor a model (OWNER/NAME on the Hugging Face Hub, a "
    "model's folder or a .gguf file)"
)


def source_of(options: argparse.Namespace) -> str | ConfigFile:
    """Return the config that is named, or the one that stands for the model that is."""
    named: str = options.config
    check_kind(named, options.kind)
    if is_config(named):
        return named
    path, source = Path(named), find_source(named, kind=options.kind)
    is_file = path.is_file() and not is_tarfile(path)
    if source is None and not is_file and not is_config_url(named):
        there = "it" if path.exists() else "there is no such file, and it"
        raise BuildConfigUnreadable(source=named, reason=f"{there} {_IS_NEITHER}")
    return source or named


def run(options: argparse.Namespace) -> int:
    if options.dry_run:
        for line in plan_lines(source_of(options)):
            print(line)
        return 0
    if options.output.endswith("/"):
        raise InvalidInput(name="the destination", expected="a file's path", value=options.output)
    output = Path(options.output)
    with told_progress() as (report, progress):
        manifest = build(source_of(options), output, report=report, progress=progress)
    print(describe(manifest))
    print(f"{'written':<12}{output} ({in_words(output.stat().st_size)})")
    return 0
