"""The ``cog-triton`` command that pip installs."""

import sys
from pathlib import Path

# A wheel's folder cog_triton has what a checkout's root has.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from cli.main import main

__all__ = ["main"]
