"""``cog-triton migrate OLD.yaml``: migrate an old TensorRT-LLM config."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from builder.config.file import ConfigFile, parse_config, read_text
from builder.config.text import config_text
from builder.trtllm.rules import check, is_unversioned
from engine.redact import redact_url
from errors.build import BuildFailed

_TOKEN_LEFT_OUT = "hf_token: removed; set HF_TOKEN or pass the token with the build"


def add_parser(subparsers: Any) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "migrate",
        help="migrate a build config of an earlier TensorRT-LLM",
        description="Migrate a build config of TensorRT-LLM 0.5 to 0.15, with a comment for each change. A "
        "build does the same automatically.",
    )
    parser.add_argument("config", help="build config: a YAML file or its URL")
    parser.add_argument("-o", "--output", type=Path, help="the file to write (default: stdout)")
    parser.set_defaults(run=run)
    return parser


def run(options: argparse.Namespace) -> int:
    text = read_text(options.config)
    file = parse_config(text, shown=redact_url(options.config), folder=None)
    migrated, notes = _migrated(text, file)
    for note in notes:
        print(note, file=sys.stderr)
    if options.output is None:
        print(migrated, end="")
    else:
        _write(options.output, migrated)
        print(f"{'written':<12}{options.output}", file=sys.stderr)
    return 0


def _migrated(text: bytes, file: ConfigFile) -> tuple[str, list[str]]:
    """The migrated config and notes about the changes; a current config is not changed."""
    if not is_unversioned(file.config):
        return text.decode(), ["nothing to change: the config is current"]
    check(file.config)
    head = f"# {_TOKEN_LEFT_OUT}\n" if file.hf_token is not None else ""
    return head + config_text(file.config, file.changes), list(file.notes) + (
        [_TOKEN_LEFT_OUT] if head else []
    )


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text)
    except OSError as exc:
        raise BuildFailed(reason=exc.strerror or str(exc), path=path) from exc
