"""The load test, ``python -m perf load``, from any folder and with any Python."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perf.__main__ import main

__test__ = False  # For pytest: the name is documented, and no test.

if __name__ == "__main__":
    sys.exit(main(["load", *sys.argv[1:]]))
