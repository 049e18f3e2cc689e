"""Show on how many GPUs of which memory a model fits, with how many tokens of KV cache, and of a build its
commands, downloads and sizes: weights, engine, KV cache, memory and disk space. Only the model's
config.json is downloaded.
"""

import argparse
from pathlib import Path

from builder.plan import plan_lines
from cli.build import CONFIG_HELP, source_of
from cli.serve import LOOKING_UP, add_kind_argument
from engine.live_line import LiveLine

HELP = "show on which GPUs a model fits, and the steps, downloads and sizes of a build"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", help=CONFIG_HELP)
    add_kind_argument(parser)
    parser.add_argument(
        "--model-config",
        type=Path,
        metavar="FILE",
        help="the model's config.json, so that nothing is downloaded",
    )


def run(options: argparse.Namespace) -> int:
    with LiveLine() as live:
        live.show(LOOKING_UP)
        for line in plan_lines(source_of(options), model_config=options.model_config):
            live.say(line)
    return 0
