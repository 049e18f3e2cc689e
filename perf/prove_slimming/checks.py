"""The work that is compared: PyTorch's own operators, and calls of its libraries that those do not reach."""

from __future__ import annotations

import os
import random
import tempfile
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, islice

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils._pytree import tree_leaves

Check = tuple[str, Callable[[], object]]
"""A name, and the work."""

_HALVES = (torch.float16, torch.bfloat16)
_FLOATS = (torch.float32, *_HALVES, torch.float64)
_ATTENTIONS = (
    SDPBackend.MATH,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
)
_SAMPLES = 5
# Not the complex ones: PyTorch compiles most of those at run time, which takes minutes.
_OPERATOR_DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.int64)


def checks(device: str) -> Iterator[Check]:
    """Each begins with the same random numbers, whatever ran before."""
    for name, work in chain(_library_calls(device), _operators(device)):
        yield name, partial(_seeded, zlib.crc32(name.encode()), work)


def _seeded(seed: int, work: Callable[[], object]) -> object:
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    return work()


def _operators(device: str) -> Iterator[Check]:
    """PyTorch's own list with sample inputs: each operator in each type it has, and its gradients."""
    for op in op_db:
        if op.name.startswith("jiterator"):
            continue
        supported = op.supported_dtypes(device)
        name = " ".join(filter(None, ["operator", op.name, op.variant_test_name]))
        for dtype in [each for each in _OPERATOR_DTYPES if each in supported] or sorted(supported, key=str)[
            :1
        ]:
            yield f"{name} {dtype}", partial(_outcomes, op, device, dtype, _output)
        if torch.float32 in supported and op.supports_autograd:
            yield f"{name} gradients", partial(_outcomes, op, device, torch.float32, _gradients)


def _outcomes(
    op: OpInfo, device: str, dtype: torch.dtype, outcome: Callable[[OpInfo, SampleInput], object]
) -> object:
    samples = op.sample_inputs(device, dtype, requires_grad=outcome is _gradients)
    return [outcome(op, sample) for sample in islice(samples, _SAMPLES)]


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


def _library_calls(device: str) -> Iterator[Check]:
    """Sizes and types of a real model."""
    for dtype in (*_FLOATS, torch.complex64):
        for m, n, k in ((8, 8, 8), (128, 4096, 4096), (1, 8192, 2048), (333, 777, 555), (4096, 4096, 1024)):
            yield f"cuBLAS {m}x{n}x{k} {dtype}", partial(_product, device, dtype, m, n, k)
    yield "cuBLASLt float8", partial(_scaled, device)
    yield "grouped products", partial(_groups, device)
    for dtype in (*_HALVES, torch.int8):
        yield f"cuSPARSELt {dtype}", partial(_semi_structured, device, dtype)
    for dtype in _FLOATS:
        for dimensions in (1, 2, 3):
            yield f"cuDNN {dimensions}d {dtype}", partial(_convolution, device, dtype, dimensions)
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        yield f"cuDNN {kind.__name__}", partial(_recurrent, device, kind)
    for backend in _ATTENTIONS:
        for dtype in _HALVES:
            for size in (64, 80, 128, 256):
                work = partial(_attention, device, dtype, backend, size)
                yield f"attention {backend.name} {size} {dtype}", work
    yield "generation", partial(_generation, device)
    yield "NCCL", partial(_collectives, device)


def _product(device: str, dtype: torch.dtype, m: int, n: int, k: int) -> object:
    a = torch.randn(m, k, device=device, dtype=dtype)
    b = torch.randn(n, k, device=device, dtype=dtype)
    return a @ b.T, F.linear(a, b, b[:, 0].contiguous())


def _scaled(device: str) -> object:
    a, b = (torch.randn(size, 512, device=device).to(torch.float8_e4m3fn) for size in (256, 1024))
    scales = [torch.rand(1, device=device) + 0.5 for _ in range(2)]
    return [
        torch._scaled_mm(a, b.T, *scales, out_dtype=torch.bfloat16, use_fast_accum=is_fast)
        for is_fast in (True, False)
    ]


def _groups(device: str) -> object:
    """Kernels for sm_90a."""
    a = torch.randn(512, 256, device=device, dtype=torch.bfloat16)
    b = torch.randn(4, 128, 256, device=device, dtype=torch.bfloat16)
    ends = torch.tensor([112, 256, 304, 512], device=device, dtype=torch.int32)
    return torch._grouped_mm(a, b.transpose(-2, -1), ends)


def _semi_structured(device: str, dtype: torch.dtype) -> object:
    pattern = torch.tensor([0, 0, 1, 1], device=device).tile(256, 64)
    a = (torch.randn(256, 256, device=device) * 10).to(dtype) * pattern.to(dtype)
    b = (torch.randn(256, 128, device=device) * 10).to(dtype)
    packed = torch._cslt_compress(a)
    return packed, torch._cslt_sparse_mm(packed, b.T.contiguous().T if dtype is torch.int8 else b)


def _convolution(device: str, dtype: torch.dtype, dimensions: int) -> object:
    forward = getattr(F, f"conv{dimensions}d")
    transposed = getattr(F, f"conv_transpose{dimensions}d")
    x = torch.randn(4, 16, *[18] * dimensions, device=device, dtype=dtype, requires_grad=True)
    w = torch.randn(32, 16, *[3] * dimensions, device=device, dtype=dtype, requires_grad=True)
    y = forward(x, w, stride=2, padding=1)
    z = forward(x, w, dilation=2)
    u = transposed(y, w, stride=2)
    (y.sum() + z.square().sum() + u.sum()).backward()
    return y, z, u, x.grad, w.grad


def _recurrent(device: str, kind: type[nn.RNNBase]) -> object:
    net = kind(64, 128, 2, bidirectional=True, batch_first=True, device=device)
    x = torch.randn(8, 30, 64, device=device, requires_grad=True)
    y, state = net(x)
    y.sum().backward()
    return y, state, x.grad, [one.grad for one in net.parameters()]


def _attention(device: str, dtype: torch.dtype, backend: SDPBackend, size: int) -> object:
    q, k, v = (torch.randn((2, 8, 333, size), device=device, dtype=dtype) for _ in range(3))
    with sdpa_kernel(backend):
        return [F.scaled_dot_product_attention(q, k, v, is_causal=causal) for causal in (False, True)]


def _generation(device: str) -> object:
    """Greedy generation of a small Llama with random weights."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=8000, hidden_size=1024, intermediate_size=2816, num_hidden_layers=8,
        num_attention_heads=16, num_key_value_heads=4,
    )  # fmt: skip
    with torch.device(device):
        model = LlamaForCausalLM(config).to(torch.bfloat16).eval()
        prompts = torch.randint(3, 8000, (8, 48))
        mask = torch.ones_like(prompts)
    ids = model.generate(prompts, attention_mask=mask, max_new_tokens=64, do_sample=False, pad_token_id=0)
    with torch.no_grad():
        return ids, model(ids).logits


def _collectives(device: str) -> object:
    """NCCL with one rank: it looks through all its kernels when it starts."""
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "nccl", init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        try:
            x = torch.randn(1000, device=device)
            torch.distributed.all_reduce(x)
            torch.cuda.synchronize()
            return x
        finally:
            torch.distributed.destroy_process_group()
