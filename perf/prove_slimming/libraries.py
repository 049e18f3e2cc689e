"""Calls that the samples of operators.py don't reach: large sizes, rare types, cuRAND's own interface.

Also CUDA graphs, NCCL, NVRTC, and a model.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Check = tuple[str, Callable[[], object]]
"""A name, and the work."""

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (torch.float32, *HALVES, torch.float64)
_ATTENTIONS = (
    SDPBackend.MATH,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
)
_CURAND = {"XORWOW": 101, "MRG32K3A": 121, "MTGP32": 141, "MT19937": 142, "PHILOX": 161, "SOBOL32": 201}


def checks(device: str) -> Iterator[Check]:
    """Name and work of each call; each begins with the same random numbers."""
    for name, work in _calls(device):
        yield f"library {name}", partial(_seeded, work)


def _seeded(work: Callable[[], object]) -> object:
    torch.manual_seed(11)
    return work()


def _calls(device: str) -> Iterator[Check]:
    for dtype in (*FLOATS, torch.complex64):
        for m, n, k in ((8, 8, 8), (128, 4096, 4096), (1, 8192, 2048), (333, 777, 555), (4096, 4096, 1024)):
            yield f"cuBLAS {m}x{n}x{k} {dtype}", partial(_product, device, dtype, m, n, k)
    for dtype in HALVES:
        yield f"cuBLASLt bias and activation {dtype}", partial(_fused, device, dtype)
    for work in (_integers, _four_bits, _scaled, _scaled_rows, _groups, _scaled_groups):
        yield f"products {work.__name__}", partial(work, device)
    for dtype in (*HALVES, torch.int8):
        yield f"cuSPARSELt {dtype}", partial(_semi_structured, device, dtype)
    for dtype in FLOATS:
        for dimensions in (1, 2, 3):
            for groups in (1, 8):
                name = f"cuDNN {dimensions}d {groups} groups {dtype}"
                yield name, partial(_convolution, device, dtype, dimensions, groups)
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        for dtype in (torch.float32, torch.float16):
            yield f"cuDNN {kind.__name__} {dtype}", partial(_recurrent, device, dtype, kind)
    for backend in _ATTENTIONS:
        for dtype in HALVES:
            for size in (64, 80, 128, 256):
                attend = partial(_attention, device, dtype, backend, size)
                yield f"attention {backend.name} {size} {dtype}", partial(attend, backward=False)
                yield f"attention {backend.name} {size} {dtype} gradients", partial(attend, backward=True)
    for name, number in _CURAND.items():
        yield f"cuRAND {name}", partial(_curand, device, number)
    for work in (_generation, _graph, _collectives, _jiterator):
        yield work.__name__.strip("_"), partial(work, device)


def _product(device: str, dtype: torch.dtype, m: int, n: int, k: int) -> object:
    a = torch.randn(m, k, device=device, dtype=dtype)
    b = torch.randn(n, k, device=device, dtype=dtype)
    return a @ b.T, F.linear(a, b, b[:, 0].contiguous())


def _fused(device: str, dtype: torch.dtype) -> object:
    a, b = (torch.randn(512, 1024, device=device, dtype=dtype) for _ in range(2))
    bias = torch.randn(512, device=device, dtype=dtype)
    return [torch._addmm_activation(bias, a, b.T, use_gelu=use_gelu) for use_gelu in (True, False)]


def _integers(device: str) -> object:
    a, b = (torch.randint(-128, 127, (512, 1024), device=device, dtype=torch.int8) for _ in range(2))
    return torch._int_mm(a, b.T)


def _four_bits(device: str) -> object:
    weights = torch.randint(0, 255, (256, 512), device=device, dtype=torch.uint8)
    a = torch.randn(32, 1024, device=device, dtype=torch.bfloat16)
    packed = torch._convert_weight_to_int4pack(weights, 8)
    return torch._weight_int4pack_mm(a, packed, 32, torch.randn(32, 256, 2, device=device, dtype=a.dtype))


def _eights(device: str, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=device).to(torch.float8_e4m3fn)


def _scale(device: str, *shape: int) -> torch.Tensor:
    return torch.rand(*shape, device=device) + 0.5


def _scaled(device: str) -> object:
    a, b = _eights(device, 256, 512), _eights(device, 1024, 512)
    scales = _scale(device, 1), _scale(device, 1)
    return [
        torch._scaled_mm(a, b.T, *scales, out_dtype=dtype, use_fast_accum=is_fast)
        for dtype in (torch.bfloat16, torch.float32)
        for is_fast in (True, False)
    ]


def _scaled_rows(device: str) -> object:
    a, b = _eights(device, 256, 512), _eights(device, 1024, 512)
    scales = _scale(device, 256, 1), _scale(device, 1, 1024)
    return torch._scaled_mm(a, b.T, *scales, out_dtype=torch.bfloat16)


def _group_ends(device: str) -> torch.Tensor:
    return torch.tensor([112, 256, 304, 512], device=device, dtype=torch.int32)


def _groups(device: str) -> object:
    """Kernels for sm_90a."""
    a = torch.randn(512, 256, device=device, dtype=torch.bfloat16)
    b = torch.randn(4, 128, 256, device=device, dtype=torch.bfloat16)
    return torch._grouped_mm(a, b.transpose(-2, -1), _group_ends(device))


def _scaled_groups(device: str) -> object:
    a, b = _eights(device, 512, 256), _eights(device, 4, 128, 256).transpose(-2, -1)
    scales = _scale(device, 512), _scale(device, 4, 128)
    return torch._scaled_grouped_mm(a, b, *scales, _group_ends(device), out_dtype=torch.bfloat16)


def _semi_structured(device: str, dtype: torch.dtype) -> object:
    pattern = torch.tensor([0, 0, 1, 1], device=device).tile(256, 64)
    a = (torch.randn(256, 256, device=device) * 10).to(dtype) * pattern.to(dtype)
    b = (torch.randn(256, 128, device=device) * 10).to(dtype)
    packed = torch._cslt_compress(a)
    return packed, torch._cslt_sparse_mm(packed, b.T.contiguous().T if dtype is torch.int8 else b)


def _convolution(device: str, dtype: torch.dtype, dimensions: int, groups: int) -> object:
    forward = getattr(F, f"conv{dimensions}d")
    transposed = getattr(F, f"conv_transpose{dimensions}d")
    kernel = [3] * dimensions
    x = torch.randn(4, 16, *[18] * dimensions, device=device, dtype=dtype, requires_grad=True)
    w = torch.randn(32, 16 // groups, *kernel, device=device, dtype=dtype, requires_grad=True)
    y = forward(x, w, stride=2, padding=1, groups=groups)
    z = forward(x, w, dilation=2, groups=groups)
    u = transposed(y, w, stride=2, groups=groups)
    (y.sum() + z.square().sum() + u.sum()).backward()
    return y, z, u, x.grad, w.grad


def _recurrent(device: str, dtype: torch.dtype, kind: type[nn.RNNBase]) -> object:
    net = kind(64, 128, 2, bidirectional=True, batch_first=True, device=device, dtype=dtype)
    x = torch.randn(8, 30, 64, device=device, dtype=dtype, requires_grad=True)
    y, state = net(x)
    y.float().sum().backward()
    return y, state, x.grad, [one.grad for one in net.parameters()]


def _attention(device: str, dtype: torch.dtype, backend: SDPBackend, size: int, *, backward: bool) -> object:
    shape = (2, 8, 333, size)
    q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=backward) for _ in range(3))
    with sdpa_kernel(backend):
        y = F.scaled_dot_product_attention(q, k, v)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    if not backward:
        return y, z
    (y.float().sum() + z.float().square().sum()).backward()
    return q.grad, k.grad, v.grad


def _curand(device: str, number: int) -> torch.Tensor:
    """cuRAND by its own interface: PyTorch has generators of its own."""
    library = ctypes.CDLL("libcurand.so.10")  # loaded already, since PyTorch is linked with it
    generator, result = ctypes.c_void_p(), torch.zeros(20_000, device=device)
    torch.cuda.synchronize()
    statuses = [library.curandCreateGenerator(ctypes.byref(generator), number)]
    if number < 200:
        statuses.append(library.curandSetPseudoRandomGeneratorSeed(generator, ctypes.c_ulonglong(7)))
    address, count = ctypes.c_void_p(result.data_ptr()), ctypes.c_size_t(20_000)
    statuses.append(
        library.curandGenerateNormal(generator, address, count, ctypes.c_float(0), ctypes.c_float(1))
    )
    torch.cuda.synchronize()
    library.curandDestroyGenerator(generator)
    if any(statuses):
        raise RuntimeError(f"cuRAND returned {statuses}")
    return result


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


def _graph(device: str) -> object:
    """Captured and replayed."""
    net = nn.Sequential(nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256)).to(device).half()
    x = torch.randn(64, 256, device=device).half()
    with torch.no_grad():
        net(x)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = net(x)
        x.copy_(torch.randn_like(x))
        graph.replay()
    return y


def _collectives(device: str) -> object:
    """NCCL with one rank: it looks through all its kernels when it starts."""
    os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group(
            "nccl", init_method=f"file://{folder}/store", rank=0, world_size=1
        )
        try:
            x = torch.randn(1000, device=device)
            parts = [torch.empty_like(x)]
            torch.distributed.all_reduce(x)
            torch.distributed.all_gather(parts, x)
            torch.cuda.synchronize()
            return x, parts
        finally:
            torch.distributed.destroy_process_group()


def _jiterator(device: str) -> object:
    """NVRTC, by way of PyTorch's jiterator."""
    function = torch.cuda.jiterator._create_jit_fn(
        "template <typename T> T f(T x, T y) { return x * y + x / (y + 3); }"
    )
    x = torch.randn(1000, device=device)
    return function(x, x.abs()), torch.special.bessel_j0(x), torch.special.zeta(x.abs() + 1.5, x.abs() + 1)
