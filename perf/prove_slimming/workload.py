"""Do all the work in one environment, each piece twice; print a line of JSON for each: its name, and its
digest, its error, or that it varies.

    python3 -m perf.prove_slimming.workload RESULTS.jsonl [--only TEXT] [--device cpu]

The last line lists the shared libraries that were loaded.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch.utils._pytree import tree_leaves

from perf.prove_slimming.checks import checks

VARIES = "varies"


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("results", type=Path)
    parser.add_argument("--only", default="", help="only what has this in its name")
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # which PyTorch's determinism needs
    with options.results.open("w", buffering=1) as results:
        for name, work in checks(options.device):
            if options.only in name:
                first, second = _outcome(work), _outcome(work)
                outcome = first if first == second else VARIES
                print(json.dumps({"name": name, "outcome": outcome}), file=results)
        maps = Path("/proc/self/maps").read_text().splitlines()
        libraries = sorted({line.split(maxsplit=5)[5] for line in maps if ".so" in line})
        print(json.dumps({"libraries": libraries}), file=results)
    os._exit(0)  # skips what libraries do when they are unloaded


def _outcome(work: Callable[[], object]) -> str:
    """The digest, as deterministic as PyTorch can, or the error."""
    for warn_only in (False, True):
        torch.use_deterministic_algorithms(True, warn_only=warn_only)
        try:
            with torch.backends.cudnn.flags(
                enabled=True, benchmark=False, deterministic=True, allow_tf32=False
            ):
                return digest(work())
        except Exception as error:  # noqa: BLE001 - whatever it is, it is the outcome
            outcome = f"{type(error).__name__}: {str(error).strip().splitlines()[:1]}"
        if not any(hint in outcome for hint in ("determinis", "No available kernel")):
            break
    return outcome


def digest(value: object) -> str:
    """SHA-256 over types, shapes and bits of all tensors in a nested result, and over its numbers."""
    running = hashlib.sha256()
    for leaf in tree_leaves(value):
        for part in _plain(leaf.detach()) if isinstance(leaf, torch.Tensor) else [leaf]:
            if isinstance(part, torch.Tensor):
                running.update(f"{part.dtype}{tuple(part.shape)}".encode())
                flat = part.resolve_conj().resolve_neg().cpu().reshape(-1).clone()
                # A single element may have any stride, which forbids viewing.
                flat = flat.as_strided((flat.numel(),), (1,))
                running.update(flat.view(torch.uint8).numpy().tobytes())
            else:
                running.update(repr(part).encode())
    return running.hexdigest()[:16]


def _plain(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
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


if __name__ == "__main__":
    main()
