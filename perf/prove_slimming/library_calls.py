"""Calls that reach into each of PyTorch's CUDA libraries, at sizes where their own kernels are chosen."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import networks
import numerics
import products
import torch
from check import Check


def checks(device: str) -> Iterator[Check]:
    """Name and work of each call."""
    for group in (*products.GROUPS, *networks.GROUPS, *numerics.GROUPS):
        subject = group.__name__.strip("_").replace("_", " ")
        for name, work in group(device):
            yield f"library {subject}: {name}", partial(_seeded, work)


def _seeded(work: Callable[[], object]) -> object:
    torch.manual_seed(20)
    return work()
