"""A digest of whatever an operator returns: equal only if every bit of every tensor is."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import torch
from torch.utils._pytree import tree_leaves


def digest(value: object) -> str:
    """SHA-256 over types, shapes and bits of all tensors in a nested result, and over its numbers."""
    running = hashlib.sha256()
    for leaf in tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            for part in _plain(leaf.detach()):
                _add_tensor(running, part)
        else:
            running.update(repr(leaf).encode())
    return running.hexdigest()[:16]


def _add_tensor(running: hashlib._Hash, tensor: torch.Tensor) -> None:
    running.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
    flat = tensor.resolve_conj().resolve_neg().cpu().reshape(-1).clone()
    packed = flat.as_strided(
        (flat.numel(),), (1,)
    )  # a single element may have any stride, which forbids viewing
    running.update(packed.view(torch.uint8).numpy().tobytes())


def _plain(tensor: torch.Tensor) -> Iterable[torch.Tensor]:
    """The ordinary tensors that a sparse, nested or quantized one consists of."""
    if tensor.is_nested:
        return list(tensor.unbind())
    if tensor.is_quantized:
        return [tensor.int_repr()]
    if tensor.layout is torch.sparse_coo:
        whole = tensor.coalesce()
        return [whole.indices(), whole.values()]
    if tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    if tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    return [tensor]
