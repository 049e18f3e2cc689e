"""Memory does not grow with the engine: measured in processes of their own, on a file of 256 MiB."""

import mmap
import shutil
import subprocess
import sys
from pathlib import Path

from tests.engine.tar_server import TarServer

SIZE_BYTES = 1 << 28
MOST_MIB = 120
MOST_MIB_WITH_RANGES = 200

PROGRAM = r"""
import re, sys
from pathlib import Path
from engine.tar.manifest import EngineFacts
from engine.tar.pack import pack
from engine.cache.store import open_engine
from engine.tar.unpack import unpack
work, path, other = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
if work == "pack":
    pack(path, EngineFacts(engine_kind="paced"), other)
elif work == "unpack":
    with path.open("rb") as file:
        unpack(file, other)
else:
    open_engine(sys.argv[2], other)
print(int(re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) // 1024)
"""


def _peak_mib(work: str, path: object, other: Path) -> int:
    """Return the peak by VmHWM; ru_maxrss would count what the parent had before exec."""
    command = [sys.executable, "-c", PROGRAM, work, str(path), str(other)]
    return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


def test_a_quarter_of_a_gibibyte_passes_through_little_memory(server: TarServer, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (source / name).write_text("{}")
    with (source / "rank0.engine").open("wb") as sparse:
        sparse.truncate(SIZE_BYTES)
    assert _peak_mib("pack", source, tmp_path / "engine.tar") < MOST_MIB
    (source / "rank0.engine").unlink()
    assert _peak_mib("unpack", tmp_path / "engine.tar", tmp_path / "engine") < MOST_MIB
    assert (tmp_path / "engine" / "rank0.engine").stat().st_size == SIZE_BYTES
    shutil.rmtree(tmp_path / "engine")
    with (
        (tmp_path / "engine.tar").open("rb") as file,
        mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as tar,
    ):
        server.content = tar
        assert _peak_mib("open", server.url, tmp_path / "cache") < MOST_MIB_WITH_RANGES
        assert server.sent_bytes == len(tar)
        server.close()
    shutil.rmtree(tmp_path)
