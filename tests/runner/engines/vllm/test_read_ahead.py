"""Weights are read into the page cache before vLLM asks for them."""

import errno
import os
from pathlib import Path

import pytest

from runner.engines.vllm import read_ahead
from tests.runner.servers import wait_until

_SIZES = (100_000_000, 20_000_000, 4096, 1)


@pytest.fixture
def weights(tmp_path: Path) -> list[Path]:
    """Make files that are on the disk alone, where the file system can do that."""
    files = [tmp_path / f"model-{number}.safetensors" for number in range(len(_SIZES))]
    for path, size in zip(files, _SIZES, strict=True):
        path.write_bytes(bytes(size))
        with path.open("rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if _in_memory(files[0]):
        pytest.skip("this file system keeps all its files in memory")
    return files


def _in_memory(path: Path) -> bool:
    """Return True if no page of the file is missing."""
    with path.open("rb") as file:
        for offset in range(0, path.stat().st_size, 4096):
            try:
                os.preadv(file.fileno(), [bytearray(4096)], offset, os.RWF_NOWAIT)
            except BlockingIOError:
                return False
            except OSError as exc:
                pytest.skip(f"this file system does not tell what is in memory: {exc}")
    return True


def test_all_weights_are_read(weights: list[Path]) -> None:
    read_ahead.read_ahead(weights[0].parent, "auto")
    wait_until(lambda: all(map(_in_memory, weights)))


def test_not_what_is_loaded_otherwise(weights: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead.threading, "Thread", lambda **_: pytest.fail("it is read"))
    read_ahead.read_ahead(weights[0].parent, "dummy")


def test_not_more_than_fits_into_memory(weights: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "ram_here_bytes", lambda: 100_000_000)
    read_ahead._read(weights[0].parent, "auto")
    assert not _in_memory(weights[0])


@pytest.mark.parametrize(("load_format", "is_read"), [("auto", True), ("safetensors", False)])
def test_of_two_copies_the_one_that_vllm_loads(
    weights: list[Path], tmp_path: Path, load_format: str, is_read: bool
) -> None:
    copy = weights[0].rename(tmp_path / "consolidated.safetensors")
    read_ahead._read(tmp_path, load_format)
    assert _in_memory(copy) == is_read
    assert _in_memory(weights[1]) != is_read


def test_what_is_in_memory_is_not_read_again(weights: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    read_ahead._read(weights[0].parent, "auto")
    reads = _count_reads(monkeypatch)
    read_ahead._read(weights[0].parent, "auto")
    assert not reads


def test_a_file_system_that_cannot_tell_is_read(weights: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    reads = _count_reads(monkeypatch, OSError(errno.EOPNOTSUPP, "not supported"))
    read_ahead._read(weights[0].parent, "auto")
    assert sum(reads) == sum(_SIZES)


def test_a_file_that_has_gone_is_vllms_to_report(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").symlink_to("nothing")
    read_ahead._read(tmp_path, "auto")


def _count_reads(monkeypatch: pytest.MonkeyPatch, error: OSError | None = None) -> list[int]:
    """Count the bytes of each reading that may wait for the disk; others fail with ``error``."""
    reads: list[int] = []
    preadv = os.preadv

    def counted(descriptor: int, buffers: list[bytearray], offset: int, flags: int = 0) -> int:
        if flags and error:
            raise error
        size = preadv(descriptor, buffers, offset, flags)
        if not flags:
            reads.append(size)
        return size

    monkeypatch.setattr(os, "preadv", counted)
    return reads
