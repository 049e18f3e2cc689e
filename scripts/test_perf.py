"""Load test of cog-triton, its mock, Triton, an OpenAI server or a model on Replicate (Python 3.10 or newer).

    python3 scripts/test_perf.py --target cog-triton --rate 8 --unit rps --duration 30 \\
        --n_input_tokens 100 --n_output_tokens 100
    python3 scripts/test_perf.py --unit batch --duration 10 --tps 100 --n_output_tokens 128 \\
        --output_method yield --rate 24                              # the mock (mock_cog_triton/)
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from perf.load.command import main

__test__ = False  # For pytest: the name is documented, and no test.

if __name__ == "__main__":
    sys.exit(main(description=__doc__ or "", prog="test_perf.py"))
