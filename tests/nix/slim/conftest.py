"""The package made importable: it is outside the project's packages, since a Nix build runs it alone."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "nix" / "slim"))
