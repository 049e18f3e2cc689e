"""Reading of a model's weights from the disk while vLLM is imported.

The import takes about as long as a disk needs for ten gigabytes, and vLLM opens the weights only after it. By
then the system has them in its page cache, from which vLLM's own loader takes them.
"""

import errno
import os
import threading
from contextlib import suppress
from pathlib import Path

from engine.machine.main_memory import ram_here_bytes

_FORMATS = ("auto", "safetensors")
"""Values of vLLM's ``load_format`` whose loader reads the files by the page cache."""
_SHARE_OF_MEMORY = 0.75
"""Weights that take more would push each other out of the page cache."""
_BLOCK_BYTES = 16 << 20
_BLOCKS_PER_CALL = 4
"""Each call waits for Python's lock, which the import holds, so it reads several blocks, into one buffer."""
_PAGE_BYTES = 4096


def read_ahead(engine_dir: Path, load_format: str) -> None:
    """Read the weights in a thread, unless they are in memory, do not fit there, or are loaded otherwise."""
    if load_format in _FORMATS:
        threading.Thread(target=_read, args=(engine_dir, load_format), name="read-ahead", daemon=True).start()


def _read(engine_dir: Path, load_format: str) -> None:
    buffers = [bytearray(_BLOCK_BYTES)] * _BLOCKS_PER_CALL
    step = _BLOCK_BYTES * _BLOCKS_PER_CALL
    with suppress(OSError):  # A failure shows when vLLM reads the file.
        files = _weights(engine_dir, load_format)
        if sum(path.stat().st_size for path in files) > _SHARE_OF_MEMORY * ram_here_bytes():
            return
        for path in files:
            with path.open("rb", buffering=0) as file:
                size = os.fstat(file.fileno()).st_size
                for offset in range(0, size, step):
                    if not _is_in_memory(file.fileno(), min(offset + step, size) - _PAGE_BYTES):
                        os.preadv(file.fileno(), buffers, offset)


def _weights(engine_dir: Path, load_format: str) -> list[Path]:
    """List the files that vLLM loads. Mistral's models may have two copies of the weights."""
    files = sorted(engine_dir.glob("*.safetensors"))
    consolidated = [path for path in files if path.name.startswith("consolidated")]
    if consolidated and load_format == "auto":
        return consolidated
    return [path for path in files if path not in consolidated] or files


def _is_in_memory(descriptor: int, offset: int) -> bool:
    """Tell by one page whether reading there needs no disk, as after the engine was unpacked."""
    try:
        return bool(os.preadv(descriptor, [bytearray(_PAGE_BYTES)], max(offset, 0), os.RWF_NOWAIT))
    except OSError as exc:
        if exc.errno in (errno.EAGAIN, errno.EOPNOTSUPP):  # The latter: the file system can't tell.
            return False
        raise
