"""Transforms, factorizations, random numbers, ordering; CUDA graphs, NCCL and NVRTC."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from check import Check
from torch import nn


def _fourier(device: str) -> Iterator[Check]:
    """cuFFT: powers of small primes, large primes, several dimensions, both directions, every precision."""
    for dtype in (torch.float32, torch.float64):
        for n in (16, 1024, 1 << 16, 3**7, 5**5 * 2, 7**4, 10007, 11 * 13 * 17):

            def transform(n: int = n, dtype: torch.dtype = dtype) -> object:
                x = torch.randn(4, n, device=device, dtype=dtype)
                y = torch.fft.rfft(x)
                return y, torch.fft.irfft(y, n), torch.fft.fft(x), torch.fft.ifft(torch.fft.fft(x))

            yield f"{n} {dtype}", transform

        def planes(dtype: torch.dtype = dtype) -> object:
            x = torch.randn(3, 48, 64, 80, device=device, dtype=dtype)
            return torch.fft.fft2(x), torch.fft.fftn(x, dim=(1, 2, 3)), torch.fft.rfftn(x, dim=(1, 2, 3))

        yield f"planes and volumes {dtype}", planes

    yield "half", lambda: torch.fft.fft(torch.randn(8, 512, device=device, dtype=torch.complex32))
    window = torch.hann_window(400)
    yield (
        "stft",
        lambda: torch.stft(
            torch.randn(2, 16000, device=device), 400, 160, window=window.to(device), return_complex=True
        ),
    )


def _algebra(device: str) -> Iterator[Check]:
    """cuSOLVER, MAGMA and cuBLAS: factorizations, singly and in batches."""
    for dtype in (torch.float32, torch.float64, torch.complex64):
        for shape in ((300, 300), (20, 48, 48)):

            def matrix(shape: tuple[int, ...] = shape, dtype: torch.dtype = dtype) -> torch.Tensor:
                return torch.randn(shape, device=device, dtype=dtype)

            def positive(matrix: Callable[[], torch.Tensor] = matrix) -> torch.Tensor:
                a = matrix()
                return a @ a.mH + 10 * torch.eye(a.shape[-1], device=device, dtype=a.dtype)

            calls: dict[str, Callable[[torch.Tensor], object]] = {
                "svd": torch.linalg.svd,
                "eig": torch.linalg.eig,
                "qr": torch.linalg.qr,
                "lu": torch.linalg.lu,
                "inv": torch.linalg.inv,
                "det": torch.linalg.slogdet,
                "pinv": torch.linalg.pinv,
                "solve": lambda a: torch.linalg.solve(a, a[..., :3]),
                "lstsq": lambda a: torch.linalg.lstsq(a, a[..., :3]).solution,
                "matrix_exp": lambda a: torch.linalg.matrix_exp(a / 20),
                "ldl": lambda a: torch.linalg.ldl_factor(a + a.mH),
            }
            symmetric: dict[str, Callable[[torch.Tensor], object]] = {
                "eigh": torch.linalg.eigh,
                "cholesky": torch.linalg.cholesky,
                "cholesky_inverse": lambda a: torch.cholesky_inverse(torch.linalg.cholesky(a)),
                "triangular": lambda a: torch.linalg.solve_triangular(torch.tril(a), a[..., :3], upper=False),
            }
            for name, call in calls.items():
                yield f"{name} {shape} {dtype}", partial(_of, call, matrix)
            for name, call in symmetric.items():
                yield f"{name} {shape} {dtype}", partial(_of, call, positive)


def _of(call: Callable[[torch.Tensor], object], operand: Callable[[], torch.Tensor]) -> object:
    return call(operand())


def _random(device: str) -> Iterator[Check]:
    """PyTorch's generators, and cuRAND's called by its own interface."""

    def distributions() -> object:
        x = torch.empty(100_000, device=device)
        draws = [x.clone().uniform_(), x.clone().normal_(), x.clone().exponential_(), x.clone().cauchy_()]
        draws += [
            x.clone().log_normal_(),
            x.clone().geometric_(0.3),
            x.clone().bernoulli_(0.3),
            x.clone().random_(),
        ]
        rate = torch.rand(10_000, device=device) * 20 + 0.1
        draws += [torch.poisson(rate), torch._standard_gamma(rate), torch.binomial(rate.round(), rate / 30)]
        draws += [torch.multinomial(rate, 500), torch.randperm(9999, device=device), F.dropout(x + 1, 0.3)]
        return draws

    yield "PyTorch", distributions
    generators = {
        "XORWOW": 101,
        "MRG32K3A": 121,
        "MTGP32": 141,
        "MT19937": 142,
        "PHILOX": 161,
        "SOBOL32": 201,
        "SCRAMBLED": 202,
    }
    for name, number in generators.items():
        yield f"cuRAND {name}", partial(_curand, number, device)


def _curand(number: int, device: str) -> torch.Tensor:
    library = ctypes.CDLL("libcurand.so.10")  # loaded already, as what PyTorch is linked with
    generator, result = ctypes.c_void_p(), torch.zeros(40_000, device=device)
    torch.cuda.synchronize()
    statuses = [library.curandCreateGenerator(ctypes.byref(generator), number)]
    if number < 200:
        statuses.append(library.curandSetPseudoRandomGeneratorSeed(generator, ctypes.c_ulonglong(7)))
    address = ctypes.c_void_p(result.data_ptr())
    statuses.append(library.curandGenerateUniform(generator, address, ctypes.c_size_t(20_000)))
    half = ctypes.c_void_p(result.data_ptr() + 80_000)
    statuses.append(
        library.curandGenerateNormal(
            generator, half, ctypes.c_size_t(20_000), ctypes.c_float(0), ctypes.c_float(1)
        )
    )
    torch.cuda.synchronize()
    library.curandDestroyGenerator(generator)
    if any(statuses):
        raise RuntimeError(f"cuRAND answered {statuses}")
    return result


def _ordering(device: str) -> Iterator[Check]:
    """Sorting, scanning, gathering and reducing at sizes that take several blocks."""
    for dtype in (torch.float32, torch.float16, torch.int64, torch.int8):

        def work(dtype: torch.dtype = dtype) -> object:
            x = (torch.randn(7, 100_003, device=device) * 50).to(dtype)
            index = torch.randint(0, 100_003, (7, 5000), device=device)
            return [
                *(x.sort(stable=True), x.argsort(dim=0, stable=True), x.cumsum(1), x.unique(), x.nonzero()),
                *(x.topk(100).values, x.kthvalue(500, 1).values, x.median(1).values, x.max(1), x.argmin(1)),
                *(x.gather(1, index), x.scatter(1, index.sort().values, 1), x.sum(0), x.aminmax()),
                *(x.float().std(1), x.float().logsumexp(1)),
            ]

        yield str(dtype), work

    def embeddings() -> object:
        table = torch.randn(5000, 256, device=device, requires_grad=True)
        tokens = torch.randint(0, 5000, (64, 200), device=device)
        y = F.embedding(tokens, table)
        bags = F.embedding_bag(tokens, table, mode="mean")
        (y.square().sum() + bags.sum()).backward()
        return y, bags, table.grad

    def resampling() -> object:
        x = torch.randn(2, 8, 37, 41, device=device)
        modes = ("nearest", "bilinear", "bicubic", "area", "nearest-exact")
        grid = torch.rand(2, 20, 20, 2, device=device) * 2 - 1
        return [F.interpolate(x, (64, 29), mode=mode) for mode in modes], F.grid_sample(
            x, grid, align_corners=False
        )

    yield "embeddings", embeddings
    yield "resampling", resampling


def _graphs(device: str) -> Iterator[Check]:
    def captured() -> object:
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

    yield "captured and replayed", captured


def _collectives(device: str) -> Iterator[Check]:
    """NCCL with one rank: it looks through all its kernels when it starts."""

    def reduced() -> object:
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        with tempfile.TemporaryDirectory() as folder:
            torch.distributed.init_process_group(
                "nccl", init_method=f"file://{folder}/store", rank=0, world_size=1
            )
            try:
                x = torch.randn(1000, device=device)
                torch.distributed.all_reduce(x)
                parts = [torch.empty_like(x)]
                torch.distributed.all_gather(parts, x)
                torch.cuda.synchronize()
                return x, parts
            finally:
                torch.distributed.destroy_process_group()

    yield "NCCL", reduced


def _compiled_at_run_time(device: str) -> Iterator[Check]:
    """NVRTC, by way of PyTorch's jiterator."""

    def jitted() -> object:
        function = torch.cuda.jiterator._create_jit_fn(
            "template <typename T> T f(T x, T y) { return x * y + x / (y + 3); }"
        )
        x = torch.randn(1000, device=device)
        return (
            function(x, x.abs()),
            torch.special.bessel_j0(x),
            torch.special.zeta(x.abs() + 1.5, x.abs() + 1),
        )

    yield "jiterator", jitted


GROUPS = (_fourier, _algebra, _random, _ordering, _graphs, _collectives, _compiled_at_run_time)
