"""PyTorch's own list of operators with sample inputs, forward and backward: what its tests go through."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from itertools import islice

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves

SAMPLES = 5
DTYPES = (torch.float32, torch.bfloat16, torch.complex64, torch.int64)


def checks(device: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Name and work of each operator in each type it has."""
    for op in op_db:
        supported = op.supported_dtypes(device)
        chosen = [dtype for dtype in DTYPES if dtype in supported] or sorted(supported, key=str)[:1]
        for dtype in chosen:
            name = f"{op.name}{'.' if op.variant_test_name else ''}{op.variant_test_name}"
            yield f"operator {name} {str(dtype).removeprefix('torch.')}", _work(op, device, dtype, name)


def _work(op: OpInfo, device: str, dtype: torch.dtype, name: str) -> Callable[[], object]:
    def work() -> object:
        seed = zlib.crc32(name.encode())
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
        differentiable = dtype is torch.float32 and op.supports_autograd
        samples = op.sample_inputs(device, dtype, requires_grad=differentiable)
        return [_outcome(op, sample, differentiable) for sample in islice(samples, SAMPLES)]

    return work


def _outcome(op: OpInfo, sample: SampleInput, differentiable: bool) -> object:
    output = op(sample.input, *sample.args, **sample.kwargs)
    if not differentiable:
        return output
    inputs = [one for one in tree_leaves((sample.input, sample.args, sample.kwargs)) if _needs_grad(one)]
    outputs = [one for one in tree_leaves(output) if _needs_grad(one)]
    if not inputs or not outputs:
        return output
    ones = [torch.ones_like(one) for one in outputs]
    return output, torch.autograd.grad(outputs, inputs, ones, allow_unused=True)


def _needs_grad(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
