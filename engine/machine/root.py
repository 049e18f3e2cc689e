"""The folder of our packages: a checkout, ``/src`` in an image, or ``cog_triton`` in site-packages."""

from __future__ import annotations

from pathlib import Path

SOURCE_ROOT = Path(__file__).resolve().parents[2]

IS_CHECKOUT = (SOURCE_ROOT / "Makefile").is_file()

SET_UP = "run `make setup`" if IS_CHECKOUT else "run `pip install 'cog-triton[serve]'`"
"""What brings a package that is missing."""
