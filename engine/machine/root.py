"""The folder that holds our packages: a checkout's root, or ``/src`` in an image."""

from __future__ import annotations

from pathlib import Path

SOURCE_ROOT = Path(__file__).resolve().parents[2]
