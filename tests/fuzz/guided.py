"""Fuzz one target, guided by coverage. tests/fuzz/targets.py lists the targets.

    python -m tests.fuzz.guided TARGET --seconds 3600

An input that breaks a promise is printed with its traceback and kept below .cache/fuzz/TARGET, as is the
corpus, from which the next run continues. Needs atheris (Python 3.11 and later).
"""

import argparse
import itertools
import logging
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.fuzz.targets import TARGETS

_CORPUS = Path(".cache/fuzz")
_LONGEST_BYTES = 1024
_SECONDS_PER_INPUT = 30
_MOST_MIB = 3000


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser("python -m tests.fuzz.guided", description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=300, help="of processor time")
    given = parser.parse_args(arguments)
    try:
        import atheris
    except ImportError:
        print("It needs atheris, which runs on Python 3.11 and later only.", file=sys.stderr)
        return 2
    place = TARGETS[given.target]
    with atheris.instrument_imports(include=list(place.packages)):
        target = place.load(given.target)
    logging.disable(logging.CRITICAL)
    folder = (_CORPUS / given.target).absolute()
    corpus, broken = folder / "corpus", folder / "broken"
    for each in (corpus, broken):
        each.mkdir(parents=True, exist_ok=True)
    numbers = itertools.count()

    def target_in_time(data: bytes) -> None:
        number = next(numbers)
        if time.process_time() > given.seconds:
            print(f"{number} executions", flush=True)
            raise KeyboardInterrupt  # It ends the run without an error.
        target(data)

    options = [
        f"-max_len={_LONGEST_BYTES}",
        f"-timeout={_SECONDS_PER_INPUT}",
        f"-rss_limit_mb={_MOST_MIB}",
        f"-artifact_prefix={broken}{os.sep}",
        "-len_control=0",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], target_in_time)
    atheris.Fuzz()
    return 0


if __name__ == "__main__":
    sys.exit(main())
