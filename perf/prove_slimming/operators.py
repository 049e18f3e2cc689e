"""PyTorch's own list of operators with sample inputs, forward and backward: what its tests go through."""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves

from perf.prove_slimming.libraries import Check

SAMPLES = 5
# Not the complex ones: PyTorch compiles most of those at run time, which takes minutes.
DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64)


def checks(device: str) -> Iterator[Check]:
    """Name and work of each operator in each type it has; its gradients are a check of their own."""
    for op in op_db:
        if op.name.startswith("jiterator"):
            continue
        supported = op.supported_dtypes(device)
        name = " ".join(filter(None, ["operator", op.name, op.variant_test_name]))
        for dtype in [dtype for dtype in DTYPES if dtype in supported] or sorted(supported, key=str)[:1]:
            yield f"{name} {dtype}", partial(_outcomes, op, device, dtype, _output)
        if torch.float32 in supported and op.supports_autograd:
            yield f"{name} gradients", partial(_outcomes, op, device, torch.float32, _gradients)


def _outcomes(
    op: OpInfo, device: str, dtype: torch.dtype, outcome: Callable[[OpInfo, SampleInput], object]
) -> object:
    seed = zlib.crc32(op.name.encode())
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    samples = op.sample_inputs(device, dtype, requires_grad=outcome is _gradients)
    return [outcome(op, sample) for sample in islice(samples, SAMPLES)]


def _output(op: OpInfo, sample: SampleInput) -> object:
    return op(sample.input, *sample.args, **sample.kwargs)


def _gradients(op: OpInfo, sample: SampleInput) -> object:
    inputs = [one for one in tree_leaves((sample.input, sample.args, sample.kwargs)) if _needs_grad(one)]
    outputs = [one for one in tree_leaves(_output(op, sample)) if _needs_grad(one)]
    if not inputs or not outputs:
        return None
    return torch.autograd.grad(outputs, inputs, [torch.ones_like(one) for one in outputs], allow_unused=True)


def _needs_grad(value: object) -> bool:
    return isinstance(value, torch.Tensor) and value.requires_grad
