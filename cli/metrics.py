"""Print a runner's metrics."""

import argparse
import sys

from errors.settings import MissingRequirement
from runner.observability.exposition import exposition
from runner.observability.meter import is_counting
from runner.settings.paths import metrics_dir
from runner.settings.settings import load_settings


def run(options: argparse.Namespace) -> int:
    settings = load_settings()
    folder = metrics_dir(settings.triton_http_port)
    if not is_counting(folder):
        raise MissingRequirement(
            what=f"a runner of this user with TRITON_HTTP_PORT {settings.triton_http_port}",
            remedy="start one with `cog-triton serve`, or set TRITON_HTTP_PORT to its value",
        )
    sys.stdout.write(exposition(folder, settings.triton_metrics_url))
    return 0
