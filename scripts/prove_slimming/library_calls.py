"""Calls that reach into each of PyTorch's CUDA libraries, at sizes where their own kernels are chosen."""

from __future__ import annotations

import ctypes
import os
import tempfile
from collections.abc import Callable, Iterator

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

Check = tuple[str, Callable[[], object]]

HALVES = (torch.float16, torch.bfloat16)
ATTENTION_BACKENDS = (
    SDPBackend.MATH,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.CUDNN_ATTENTION,
)
FLOATS = (torch.float32, *HALVES, torch.float64)


def checks(device: str) -> Iterator[Check]:
    """Name and work of each call."""
    groups = (
        _products,
        _scaled_products,
        _convolutions,
        _attention,
        _recurrent,
        _normalizations,
        _fourier,
        _algebra,
        _sparse,
        _semi_structured,
        _random,
        _ordering,
        _training,
        _graphs,
        _collectives,
        _compiled_at_run_time,
    )
    for group in groups:
        for name, work in group(device):
            yield f"library {group.__name__.strip('_').replace('_', ' ')}: {name}", _seeded(work)


def _seeded(work: Callable[[], object]) -> Callable[[], object]:
    def seeded() -> object:
        torch.manual_seed(20)
        return work()

    return seeded


def _products(device: str) -> Iterator[Check]:
    """cuBLAS and cuBLASLt: plain, batched, with bias and activation, of integers; many shapes."""
    for dtype in (*FLOATS, torch.complex64, torch.complex128):
        for m, n, k in ((8, 8, 8), (128, 4096, 4096), (1, 8192, 2048), (333, 777, 555), (4096, 4096, 1024)):

            def product(m: int = m, n: int = n, k: int = k, dtype: torch.dtype = dtype) -> object:
                a = torch.randn(m, k, device=device, dtype=dtype)
                b = torch.randn(n, k, device=device, dtype=dtype)
                return a @ b.T, b[:m] @ a.T if m <= n else 0, F.linear(a, b, b[:, 0].contiguous())

            yield f"mm {m}x{n}x{k} {dtype}", product

        def batched(dtype: torch.dtype = dtype) -> object:
            a = torch.randn(24, 127, 256, device=device, dtype=dtype)
            b = torch.randn(24, 256, 65, device=device, dtype=dtype)
            return torch.bmm(a, b), torch.baddbmm(a @ b, a, b, beta=0.5), a[0] @ b[0, :, 0]

        yield f"bmm {dtype}", batched

    def tf32() -> object:
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            a = torch.randn(2048, 2048, device=device)
            return a @ a, a[:100] @ a.T
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False

    yield "tf32", tf32
    for dtype in HALVES:

        def fused(dtype: torch.dtype = dtype) -> object:
            a, b = (torch.randn(512, 1024, device=device, dtype=dtype) for _ in range(2))
            bias = torch.randn(512, device=device, dtype=dtype)
            gelu = torch._addmm_activation(bias, a, b.T, use_gelu=True)
            return gelu, torch._addmm_activation(bias, a, b.T, use_gelu=False)

        yield f"bias and activation {dtype}", fused

    def integers() -> object:
        a, b = (torch.randint(-128, 127, (512, 1024), device=device, dtype=torch.int8) for _ in range(2))
        return torch._int_mm(a, b.T)

    yield "int8", integers

    def four_bits() -> object:
        weights = torch.randint(0, 255, (256, 512), device=device, dtype=torch.uint8)
        packed = torch._convert_weight_to_int4pack(weights, 8)
        a = torch.randn(32, 1024, device=device, dtype=torch.bfloat16)
        return torch._weight_int4pack_mm(a, packed, 32, torch.randn(32, 256, 2, device=device, dtype=a.dtype))

    yield "int4 weights", four_bits


def _scaled_products(device: str) -> Iterator[Check]:
    """FP8, per tensor and per row, and groups of products (kernels for sm_90a)."""

    def eights(rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, device=device).to(torch.float8_e4m3fn)

    def scale(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, device=device) + 0.5

    def per_tensor() -> object:
        a, b = eights(256, 512), eights(1024, 512)
        return [
            torch._scaled_mm(a, b.T, scale(1), scale(1), out_dtype=dtype, use_fast_accum=fast)
            for dtype in (torch.bfloat16, torch.float32)
            for fast in (True, False)
        ]

    def per_row() -> object:
        a, b = eights(256, 512), eights(1024, 512)
        return torch._scaled_mm(a, b.T, scale(256, 1), scale(1, 1024), out_dtype=torch.bfloat16)

    def groups() -> object:
        a = torch.randn(512, 256, device=device, dtype=torch.bfloat16)
        b = torch.randn(4, 256, 128, device=device, dtype=torch.bfloat16)
        ends = torch.tensor([100, 256, 300, 512], device=device, dtype=torch.int32)
        return torch._grouped_mm(a, b.transpose(-2, -1).contiguous().transpose(-2, -1), ends)

    def scaled_groups() -> object:
        a = eights(512, 256)
        b = torch.randn(4, 128, 256, device=device).to(torch.float8_e4m3fn).transpose(-2, -1)
        ends = torch.tensor([112, 256, 304, 512], device=device, dtype=torch.int32)
        return torch._scaled_grouped_mm(a, b, scale(512), scale(4, 128), ends, out_dtype=torch.bfloat16)

    yield "FP8 per tensor", per_tensor
    yield "FP8 per row", per_row
    yield "groups", groups
    yield "FP8 groups", scaled_groups


def _convolutions(device: str) -> Iterator[Check]:
    """cuDNN: one to three dimensions, groups, strides, dilation, transposed, in both memory layouts."""
    functions = {
        1: (F.conv1d, F.conv_transpose1d),
        2: (F.conv2d, F.conv_transpose2d),
        3: (F.conv3d, F.conv_transpose3d),
    }
    for dtype in FLOATS:
        for dimensions, (forward, transposed) in functions.items():
            for groups in (1, 8):

                def convolve(
                    dtype: torch.dtype = dtype, dimensions: int = dimensions, groups: int = groups,
                    forward: Callable[..., torch.Tensor] = forward,
                    transposed: Callable[..., torch.Tensor] = transposed,
                ) -> object:  # fmt: skip
                    x = torch.randn(4, 16, *[18] * dimensions, device=device, dtype=dtype, requires_grad=True)
                    w = torch.randn(
                        32, 16 // groups, *[3] * dimensions, device=device, dtype=dtype, requires_grad=True
                    )
                    y = forward(x, w, stride=2, padding=1, groups=groups)
                    z = forward(x, w, dilation=2, groups=groups)
                    u = transposed(y, w, stride=2, groups=groups)
                    (y.sum() + z.square().sum() + u.sum()).backward()
                    return y, z, u, x.grad, w.grad

                yield f"{dimensions}d {groups} groups {dtype}", convolve

        def channels_last(dtype: torch.dtype = dtype) -> object:
            x = torch.randn(8, 64, 56, 56, device=device, dtype=dtype).to(memory_format=torch.channels_last)
            layer = nn.Conv2d(64, 128, 3, padding=1, device=device, dtype=dtype).to(
                memory_format=torch.channels_last
            )
            y = layer(x).relu()
            y.float().mean().backward()
            return y, layer.weight.grad, layer.bias.grad

        yield f"channels last {dtype}", channels_last

    def tuned() -> object:
        with torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=True):
            x = torch.randn(16, 64, 32, 32, device=device)
            return F.conv2d(x, torch.randn(64, 64, 3, 3, device=device), padding=1)

    yield "tf32", tuned


def _attention(device: str) -> Iterator[Check]:
    """Every attention kernel, forward and backward, causal and not, several head sizes."""
    for backend in ATTENTION_BACKENDS:
        for dtype in HALVES:
            for size in (64, 80, 128, 256):

                def attend(
                    backend: SDPBackend = backend, dtype: torch.dtype = dtype, size: int = size
                ) -> object:
                    shape = (2, 8, 333, size)
                    q, k, v = (
                        torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in range(3)
                    )
                    with sdpa_kernel(backend):
                        y = F.scaled_dot_product_attention(q, k, v)
                        z = F.scaled_dot_product_attention(q, k, v, is_causal=True)
                    (y.float().sum() + z.float().square().sum()).backward()
                    return y, z, q.grad, k.grad, v.grad

                yield f"{backend.name} {size} {dtype}", attend

    def encoder() -> object:
        layer = nn.TransformerEncoderLayer(256, 8, 512, batch_first=True, device=device).eval()
        with torch.no_grad():
            return layer(torch.randn(4, 50, 256, device=device))

    yield "encoder layer's fast path", encoder


def _recurrent(device: str) -> Iterator[Check]:
    """cuDNN's recurrent networks."""
    for kind in (nn.LSTM, nn.GRU, nn.RNN):
        for dtype in (torch.float32, torch.float16):

            def recur(kind: type[nn.RNNBase] = kind, dtype: torch.dtype = dtype) -> object:
                net = kind(64, 128, 2, bidirectional=True, batch_first=True, device=device, dtype=dtype)
                x = torch.randn(8, 30, 64, device=device, dtype=dtype, requires_grad=True)
                y, state = net(x)
                y.float().sum().backward()
                return y, state, x.grad, [one.grad for one in net.parameters()]

            yield f"{kind.__name__} {dtype}", recur


def _normalizations(device: str) -> Iterator[Check]:
    for dtype in (torch.float32, torch.bfloat16):

        def normalize(dtype: torch.dtype = dtype) -> object:
            x = torch.randn(16, 64, 28, 28, device=device, dtype=dtype, requires_grad=True)
            layers = (
                nn.BatchNorm2d(64),
                nn.GroupNorm(8, 64),
                nn.InstanceNorm2d(64),
                nn.LayerNorm(28),
                nn.RMSNorm(28),
            )
            outputs = [layer.to(device, dtype)(x) for layer in layers]
            torch.stack([y.float().square().sum() for y in outputs]).sum().backward()
            return outputs, x.grad

        yield str(dtype), normalize


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
                yield f"{name} {shape} {dtype}", lambda call=call, matrix=matrix: call(matrix())
            for name, call in symmetric.items():
                yield f"{name} {shape} {dtype}", lambda call=call, positive=positive: call(positive())


def _sparse(device: str) -> Iterator[Check]:
    """cuSPARSE."""
    for dtype in (torch.float32, torch.float64, torch.complex64):

        def products(dtype: torch.dtype = dtype) -> object:
            dense = torch.randn(400, 300, device=device, dtype=dtype)
            rows = dense.masked_fill(torch.rand(400, 300, device=device) > 0.1, 0).to_sparse_csr()
            other = torch.randn(300, 70, device=device, dtype=dtype)
            square = rows @ rows.to_dense().mH.contiguous().to_sparse_csr()
            sampled = torch.sparse.sampled_addmm(rows, dense @ dense.mH, dense)
            return rows @ other, rows @ other[:, 0], square, sampled, rows.to_sparse_coo() @ other

        def triangular(dtype: torch.dtype = dtype) -> object:
            a = torch.tril(torch.randn(200, 200, device=device, dtype=dtype)) + 20 * torch.eye(
                200, device=device
            )
            b = torch.randn(200, 5, device=device, dtype=dtype)
            return torch.triangular_solve(b, a.to(dtype).to_sparse_csr(), upper=False).solution

        yield f"products {dtype}", products
        yield f"triangular {dtype}", triangular


def _semi_structured(device: str) -> Iterator[Check]:
    """cuSPARSELt and CUTLASS: two of four."""
    for dtype in (*HALVES, torch.int8):

        def compressed(dtype: torch.dtype = dtype) -> object:
            pattern = torch.tensor([0, 0, 1, 1], device=device).tile(256, 64)
            a = (torch.randn(256, 256, device=device) * 10).to(dtype) * pattern.to(dtype)
            b = (torch.randn(256, 128, device=device) * 10).to(dtype)
            packed = torch._cslt_compress(a)
            return packed, torch._cslt_sparse_mm(packed, b.T.contiguous().T if dtype is torch.int8 else b)

        yield f"cuSPARSELt {dtype}", compressed

    def cutlass() -> object:
        from torch.sparse import SparseSemiStructuredTensorCUTLASS

        pattern = torch.tensor([0, 0, 1, 1], device=device).tile(256, 64)
        a = torch.randn(256, 256, device=device, dtype=torch.float16) * pattern.half()
        return SparseSemiStructuredTensorCUTLASS.from_dense(a) @ torch.randn(256, 128, device=device).half()

    yield "CUTLASS", cutlass


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
        yield f"cuRAND {name}", lambda number=number: _curand(number, device)


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
                x.sort(stable=True), x.topk(100), x.argsort(dim=0, stable=True), x.cumsum(1),
                x.gather(1, index),
                x.scatter(1, index.sort().values, 1), x.max(1), x.argmin(1), x.unique(), x.kthvalue(500, 1),
                x.nonzero(), x.sum(0), x.float().std(1), x.float().logsumexp(1), x.median(1), x.aminmax(),
            ]  # fmt: skip

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


def _training(device: str) -> Iterator[Check]:
    """A few steps with mixed precision, each optimizer's fused form."""
    for name in ("Adam", "AdamW", "SGD", "RMSprop"):

        def train(name: str = name) -> object:
            net = nn.Sequential(
                nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.GELU(), nn.MaxPool2d(2), nn.Flatten(),
                nn.Linear(32 * 16 * 16, 128), nn.SiLU(), nn.Dropout(0.1), nn.Linear(128, 10),
            ).to(device)  # fmt: skip
            fused = {"foreach": True} if name == "RMSprop" else {"fused": True}
            optimizer = getattr(torch.optim, name)(net.parameters(), lr=1e-3, **fused)
            scaler = torch.amp.GradScaler(device)
            for _ in range(5):
                x, y = torch.randn(64, 3, 32, 32, device=device), torch.randint(0, 10, (64,), device=device)
                with torch.autocast(device, torch.float16):
                    loss = F.cross_entropy(net(x), y)
                optimizer.zero_grad()
                scaler.scale(loss).backward()
                scaler.unscale_(optimizer)
                nn.utils.clip_grad_norm_(net.parameters(), 1.0)
                scaler.step(optimizer)
                scaler.update()
            return loss, list(net.state_dict().values())

        yield name, train


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
