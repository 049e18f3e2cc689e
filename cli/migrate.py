"""Write a build config of an earlier TensorRT-LLM as one of today, or for its PyTorch backend."""

import argparse
import math
import sys
from collections.abc import Sequence

import yaml

from builder.config.config import BuildConfig
from builder.config.file import parse_config, read_text, shown_source
from builder.trtllm.pytorch import pytorch_config
from builder.trtllm.rules import check, is_unversioned
from engine.kinds import KINDS
from errors.build import BuildFailed

_OTHER_BACKEND = "--backend pytorch writes it for TensorRT-LLM 1.x, which has no compiled engines"
_TOKEN_LEFT_OUT = "hf_token: removed; set HF_TOKEN or pass the token with the build"


def run(options: argparse.Namespace) -> int:
    text = read_text(options.config)
    file = parse_config(text, shown=shown_source(options.config), folder=None)
    token_notes = [_TOKEN_LEFT_OUT] if file.hf_token is not None else []
    if options.backend == "pytorch" and KINDS[file.config.engine_kind].is_compiled:
        config, changes = pytorch_config(file.config, check(file.config)[0])
        notes = [*token_notes, *file.notes, *changes]
        migrated = config_text(config, notes)
    elif is_unversioned(file.config):
        check(file.config)
        notes = [*token_notes, *file.notes]
        migrated = config_text(file.config, notes)
        notes.append(_OTHER_BACKEND)
    else:
        notes, migrated = ["nothing to change: the config is current"], text.decode()
    print(*notes, sep="\n", file=sys.stderr)
    if options.output is None:
        print(migrated, end="")
        return 0
    try:
        options.output.write_text(migrated)
    except OSError as exc:
        raise BuildFailed(reason=exc.strerror or str(exc), path=options.output) from exc
    print(f"{'written':<12}{options.output}", file=sys.stderr)
    return 0


def config_text(config: BuildConfig, notes: Sequence[str] = ()) -> str:
    comments = [f"# {note if note.isprintable() else repr(note)}\n" for note in notes]
    keys = {"version": 1, **config.model_dump(exclude_unset=True, exclude_none=True)}
    return "".join(comments) + yaml.safe_dump(keys, sort_keys=False, width=math.inf)
