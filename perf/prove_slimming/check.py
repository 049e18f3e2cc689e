"""What one piece of work is, and the types that many of them take."""

from __future__ import annotations

from collections.abc import Callable

import torch

#: A name, and the work.
Check = tuple[str, Callable[[], object]]

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, *HALVES, torch.float64)
