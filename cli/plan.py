"""Print the plan of a build."""

import argparse
from pathlib import Path

from builder.config.file import ConfigFile, read_config
from builder.plan import plan_lines
from cli.build import source_of
from cli.family import family_line
from cli.serve import LOOKING_UP
from engine.live_line import LiveLine


def run(options: argparse.Namespace) -> int:
    with LiveLine() as live:
        live.show(LOOKING_UP)
        source = source_of(options)
        file = source if isinstance(source, ConfigFile) else read_config(source)
        for each in plan_lines(file, model_config=options.model_config):
            live.say(each)
        model = file.config.model_path
        line = None if model is None else family_line((file.folder or Path()) / model)
        if line is not None:
            live.say(line)
    return 0
