"""Load test of the mock: scripts/test_perf.py with ``--target mock`` (Python 3.10 or newer).

    python3 mock_cog_triton/test_perf.py --unit batch --duration 10 --tps 100 --n_output_tokens 128 \\
        --output_method yield --rate 24
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perf.__main__ import main

__test__ = False  # Documents have the name; it is no test of pytest's.

if __name__ == "__main__":
    sys.exit(main(["load", "--target", "mock", *sys.argv[1:]]))
