"""Launches each kernel of the libraries in a folder; prints CUDA's error and the kernel's number as JSON.

The errors are the CUDA runtime's: 0 none, 98 invalid device function, 200 invalid image, 209 no kernel image.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path

KERNELS = {
    "libplain.so": ("live", "dead", "ptx", "both", "live"),
    "librelocatable.so": ("relocatable",),
    "liblinkedatload.so": ("relocatable",),
}


def main() -> None:
    """Runs the command: run.py FOLDER."""
    outcomes = {}
    for library, kernels in KERNELS.items():
        loaded = ctypes.CDLL(str(Path(sys.argv[1], library)))
        for number, kernel in enumerate(kernels):
            result = ctypes.c_int(-1)
            error = getattr(loaded, f"launch_{kernel}")(ctypes.byref(result))
            outcomes[f"{library} {kernel} {number}"] = [error, result.value]
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main()
