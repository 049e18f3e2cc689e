"""Print the plan of a build."""

import argparse

from builder.plan import plan_lines
from cli.build import source_of
from cli.serve import LOOKING_UP
from engine.live_line import LiveLine


def run(options: argparse.Namespace) -> int:
    with LiveLine() as live:
        live.show(LOOKING_UP)
        for line in plan_lines(source_of(options), model_config=options.model_config):
            live.say(line)
    return 0
