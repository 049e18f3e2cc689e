"""Products of matrices: cuBLAS, cuBLASLt, CUTLASS, cuSPARSE and cuSPARSELt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from check import FLOATS, HALVES, Check


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


def _of_all(call: Callable[..., object], operands: Callable[[], Iterable[torch.Tensor]]) -> object:
    return call(*operands())


def _sparse(device: str) -> Iterator[Check]:
    """cuSPARSE."""
    for dtype in (torch.float32, torch.float64, torch.complex64):

        def operands(dtype: torch.dtype = dtype) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
            dense = torch.randn(400, 300, device=device, dtype=dtype)
            rows = dense.masked_fill(torch.rand(400, 300, device=device) > 0.1, 0).to_sparse_csr()
            return rows, dense, torch.randn(300, 70, device=device, dtype=dtype)

        products: dict[str, Callable[[torch.Tensor, torch.Tensor, torch.Tensor], object]] = {
            "by a matrix": lambda rows, dense, other: rows @ other,
            "by a vector": lambda rows, dense, other: rows @ other[:, 0],
            "by a sparse one": lambda rows, dense, other: (
                rows @ rows.to_dense().mH.contiguous().to_sparse_csr()
            ),
            "sampled": lambda rows, dense, other: torch.sparse.sampled_addmm(rows, dense @ dense.mH, dense),
            "coordinates": lambda rows, dense, other: rows.to_sparse_coo() @ other,
        }
        for name, product in products.items():
            yield f"{name} {dtype}", partial(_of_all, product, operands)

        def triangular(dtype: torch.dtype = dtype) -> object:
            a = torch.tril(torch.randn(200, 200, device=device, dtype=dtype)) + 20 * torch.eye(
                200, device=device
            )
            b = torch.randn(200, 5, device=device, dtype=dtype)
            return torch.triangular_solve(b, a.to(dtype).to_sparse_csr(), upper=False).solution

        yield f"triangular {dtype}", triangular


def _semi_structured(device: str) -> Iterator[Check]:
    """cuSPARSELt: two of four."""
    for dtype in (*HALVES, torch.int8):

        def compressed(dtype: torch.dtype = dtype) -> object:
            pattern = torch.tensor([0, 0, 1, 1], device=device).tile(256, 64)
            a = (torch.randn(256, 256, device=device) * 10).to(dtype) * pattern.to(dtype)
            b = (torch.randn(256, 128, device=device) * 10).to(dtype)
            packed = torch._cslt_compress(a)
            return packed, torch._cslt_sparse_mm(packed, b.T.contiguous().T if dtype is torch.int8 else b)

        yield f"cuSPARSELt {dtype}", compressed


GROUPS = (_products, _scaled_products, _sparse, _semi_structured)
