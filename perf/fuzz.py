"""Fuzz one target for as long as you like, guided by coverage: ``python perf/fuzz.py TARGET --seconds N``.

Targets are listed in tests/fuzz/targets.py. What broke a promise is printed with its traceback and kept below
.cache/fuzz/TARGET, as is the corpus, from which the next run goes on. Needs atheris (Python 3.11 and later).
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

_CORPUS = Path(".cache/fuzz")
_LONGEST_BYTES = 1024
_SECONDS_PER_INPUT = 30
_MOST_MIB = 3000


def main() -> None:
    from tests.fuzz.targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=300)
    given = parser.parse_args()
    try:
        import atheris
    except ImportError:
        sys.exit("perf/fuzz.py needs atheris, which there is for Python 3.11 and later only.")
    place = TARGETS[given.target]
    with atheris.instrument_imports(include=list(place.packages)):
        target = place.load(given.target)
    logging.disable(logging.CRITICAL)
    folder = (_CORPUS / given.target).absolute()
    corpus, broken = folder / "corpus", folder / "broken"
    for each in (corpus, broken):
        each.mkdir(parents=True, exist_ok=True)
    options = [
        f"-max_total_time={given.seconds}",
        f"-max_len={_LONGEST_BYTES}",
        f"-timeout={_SECONDS_PER_INPUT}",
        f"-rss_limit_mb={_MOST_MIB}",
        f"-artifact_prefix={broken}{os.sep}",
        "-print_final_stats=1",
        "-len_control=0",
    ]
    atheris.Setup([sys.argv[0], *options, str(corpus)], target)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
