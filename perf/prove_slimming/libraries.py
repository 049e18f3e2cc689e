"""Calls that reach each of PyTorch's CUDA libraries at sizes where its own kernels are chosen.

operators.py has every operator of PyTorch, with small samples; here is what those don't reach.
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
        yield f"cuBLAS batched {dtype}", partial(_batched, device, dtype)
    for dtype in HALVES:
        yield f"cuBLASLt bias and activation {dtype}", partial(_fused, device, dtype)
    for work in (_tf32, _integers, _four_bits, _scaled, _scaled_rows, _groups):
        yield f"products {work.__name__}", partial(work, device)
    for dtype in (torch.float32, torch.float64, torch.complex64):
        yield f"cuSPARSE {dtype}", partial(_sparse, device, dtype)
        for shape in ((300, 300), (20, 48, 48)):
            yield f"cuSOLVER and MAGMA {shape} {dtype}", partial(_factorizations, device, dtype, shape)
    for dtype in (*HALVES, torch.int8):
        yield f"cuSPARSELt {dtype}", partial(_semi_structured, device, dtype)
    for dtype in FLOATS:
        for dimensions in (1, 2, 3):
            for groups in (1, 8):
                name = f"cuDNN {dimensions}d {groups} groups {dtype}"
                yield name, partial(_convolution, device, dtype, dimensions, groups)
        yield f"cuDNN channels last {dtype}", partial(_channels_last, device, dtype)
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        for dtype in (torch.float32, torch.float16):
            yield f"cuDNN {kind.__name__} {dtype}", partial(_recurrent, device, dtype, kind)
    for backend in _ATTENTIONS:
        for dtype in HALVES:
            for size in (64, 80, 128, 256):
                yield (
                    f"attention {backend.name} {size} {dtype}",
                    partial(_attention, device, dtype, backend, size),
                )
    for dtype in (torch.float32, torch.float64):
        for n in (16, 1024, 1 << 16, 3**7, 5**5 * 2, 7**4, 10007, 11 * 13 * 17):
            yield f"cuFFT {n} {dtype}", partial(_fourier, device, dtype, n)
    for name, number in _CURAND.items():
        yield f"cuRAND {name}", partial(_curand, device, number)
    for work in (_distributions, _ordering, _training, _generation, _graph, _collectives, _jiterator):
        yield work.__name__.strip("_"), partial(work, device)


def _product(device: str, dtype: torch.dtype, m: int, n: int, k: int) -> object:
    a = torch.randn(m, k, device=device, dtype=dtype)
    b = torch.randn(n, k, device=device, dtype=dtype)
    return a @ b.T, F.linear(a, b, b[:, 0].contiguous())


def _batched(device: str, dtype: torch.dtype) -> object:
    a = torch.randn(24, 127, 256, device=device, dtype=dtype)
    b = torch.randn(24, 256, 65, device=device, dtype=dtype)
    return torch.bmm(a, b), torch.baddbmm(a @ b, a, b, beta=0.5), a[0] @ b[0, :, 0]


def _fused(device: str, dtype: torch.dtype) -> object:
    a, b = (torch.randn(512, 1024, device=device, dtype=dtype) for _ in range(2))
    bias = torch.randn(512, device=device, dtype=dtype)
    return [torch._addmm_activation(bias, a, b.T, use_gelu=use_gelu) for use_gelu in (True, False)]


def _tf32(device: str) -> object:
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        a = torch.randn(2048, 2048, device=device)
        return a @ a, a[:100] @ a.T
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


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


def _groups(device: str) -> object:
    """Kernels for sm_90a."""
    a = torch.randn(512, 256, device=device, dtype=torch.bfloat16)
    b = torch.randn(4, 256, 128, device=device, dtype=torch.bfloat16)
    ends = torch.tensor([112, 256, 304, 512], device=device, dtype=torch.int32)
    columns = b.transpose(-2, -1).contiguous().transpose(-2, -1)
    eights = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn).transpose(-2, -1).contiguous()
    scales = _scale(device, 512), _scale(device, 4, 128)
    grouped = torch._grouped_mm(a, columns, ends)
    return grouped, torch._scaled_grouped_mm(
        eights[0], eights[1].transpose(-2, -1), *scales, ends, out_dtype=torch.bfloat16
    )


def _sparse(device: str, dtype: torch.dtype) -> object:
    dense = torch.randn(400, 300, device=device, dtype=dtype)
    rows = dense.masked_fill(torch.rand(400, 300, device=device) > 0.1, 0).to_sparse_csr()
    other = torch.randn(300, 70, device=device, dtype=dtype)
    lower = torch.tril(dense[:200, :200]) + 20 * torch.eye(200, device=device)
    return [
        rows @ other,
        rows @ other[:, 0],
        rows @ rows.to_dense().mH.contiguous().to_sparse_csr(),
        torch.sparse.sampled_addmm(rows, dense @ dense.mH, dense),
        rows.to_sparse_coo() @ other,
        torch.triangular_solve(other[:200], lower.to(dtype).to_sparse_csr(), upper=False).solution,
    ]


def _semi_structured(device: str, dtype: torch.dtype) -> object:
    pattern = torch.tensor([0, 0, 1, 1], device=device).tile(256, 64)
    a = (torch.randn(256, 256, device=device) * 10).to(dtype) * pattern.to(dtype)
    b = (torch.randn(256, 128, device=device) * 10).to(dtype)
    packed = torch._cslt_compress(a)
    return packed, torch._cslt_sparse_mm(packed, b.T.contiguous().T if dtype is torch.int8 else b)


def _factorizations(device: str, dtype: torch.dtype, shape: tuple[int, ...]) -> object:
    a = torch.randn(shape, device=device, dtype=dtype)
    positive = a @ a.mH + 10 * torch.eye(a.shape[-1], device=device, dtype=dtype)
    linalg = torch.linalg
    return [
        *(call(a) for call in (linalg.svd, linalg.eig, linalg.qr, linalg.lu, linalg.inv, linalg.pinv)),
        *(linalg.slogdet(a), linalg.solve(a, a[..., :3]), linalg.lstsq(a, a[..., :3]).solution),
        *(linalg.matrix_exp(a / 20), linalg.ldl_factor(a + a.mH)),
        *(linalg.eigh(positive), linalg.cholesky(positive)),
        *(torch.cholesky_inverse(linalg.cholesky(positive)),),
        *(linalg.solve_triangular(torch.tril(positive), a[..., :3], upper=False),),
    ]


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


def _channels_last(device: str, dtype: torch.dtype) -> object:
    layout = torch.channels_last
    x = torch.randn(8, 64, 56, 56, device=device, dtype=dtype).to(memory_format=layout)
    layer = nn.Conv2d(64, 128, 3, padding=1, device=device, dtype=dtype).to(memory_format=layout)
    y = layer(x).relu()
    y.float().mean().backward()
    return y, layer.weight.grad, layer.bias.grad


def _recurrent(device: str, dtype: torch.dtype, kind: type[nn.RNNBase]) -> object:
    net = kind(64, 128, 2, bidirectional=True, batch_first=True, device=device, dtype=dtype)
    x = torch.randn(8, 30, 64, device=device, dtype=dtype, requires_grad=True)
    y, state = net(x)
    y.float().sum().backward()
    return y, state, x.grad, [one.grad for one in net.parameters()]


def _attention(device: str, dtype: torch.dtype, backend: SDPBackend, size: int) -> object:
    shape = (2, 8, 333, size)
    q, k, v = (torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3))
    with sdpa_kernel(backend):
        y = F.scaled_dot_product_attention(q, k, v)
        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    (y.float().sum() + z.float().square().sum()).backward()
    return y, z, q.grad, k.grad, v.grad


def _fourier(device: str, dtype: torch.dtype, n: int) -> object:
    x = torch.randn(4, n, device=device, dtype=dtype)
    planes = torch.randn(3, 48, 64, 80, device=device, dtype=dtype)
    y = torch.fft.rfft(x)
    whole = torch.fft.fft(x)
    return y, torch.fft.irfft(y, n), whole, torch.fft.ifft(whole), torch.fft.fftn(planes, dim=(1, 2, 3))


def _distributions(device: str) -> object:
    rate = torch.rand(10_000, device=device) * 20 + 0.1
    fills = ("uniform_", "normal_", "exponential_", "cauchy_", "log_normal_", "random_")
    return [
        *(getattr(torch.empty(100_000, device=device), fill)() for fill in fills),
        *(torch.poisson(rate), torch._standard_gamma(rate), torch.binomial(rate.round(), rate / 30)),
        *(torch.multinomial(rate, 500), torch.randperm(9999, device=device), F.dropout(rate, 0.3)),
    ]


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


def _ordering(device: str) -> object:
    """Sizes that take several blocks."""
    x = torch.randn(7, 100_003, device=device) * 50
    index = torch.randint(0, 100_003, (7, 5000), device=device)
    return [
        *(x.sort(stable=True), x.cumsum(1), x.int().unique(), x.nonzero(), x.topk(100).values),
        *(x.kthvalue(500, 1).values, x.median(1).values, x.argmin(1), x.gather(1, index), x.logsumexp(1)),
    ]


def _training(device: str) -> object:
    """A few steps with mixed precision and a fused optimizer."""
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(),
        nn.Linear(32 * 16 * 16, 128), nn.SiLU(), nn.Dropout(0.1), nn.Linear(128, 10),
    ).to(device)  # fmt: skip
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    scaler = torch.amp.GradScaler(device)
    for _ in range(5):
        x, y = torch.randn(64, 3, 32, 32, device=device), torch.randint(0, 10, (64,), device=device)
        with torch.autocast(device, torch.float16):
            loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return loss, list(net.state_dict().values())


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
