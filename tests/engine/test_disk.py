"""OSErrors of the disk as coded errors, where it is not known whether reading or writing failed."""

import errno

import pytest

from engine.disk import any_disk_error


@pytest.mark.parametrize(
    ("number", "told"),
    [
        (errno.ENOSPC, "E1310 NoSpaceLeft: /b has no room"),
        (errno.EROFS, "E1311 EngineNotWritable: /b can't be written: Read-only file system"),
        (errno.ENAMETOOLONG, "E1312 EngineUnreadable: '/a' can't be read"),
    ],
)
def test_an_error_of_writing_is_not_said_to_be_one_of_reading(number: int, told: str) -> None:
    words = {errno.EROFS: "Read-only file system"}.get(number, "it failed")
    assert told in str(any_disk_error(OSError(number, words, "/a", None, "/b")))
