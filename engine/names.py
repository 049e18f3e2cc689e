"""File names that an engine may hold: relative, plain, and different on every file system."""

import itertools
import re
import unicodedata

MAX_NAME_BYTES = 1024
MAX_PART_BYTES = 255

_USUAL_NAME = re.compile(r"(?:[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}/){0,5}[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
"""Names that are always normal, as a fast path: checking many thousand names takes long."""


_NONE: set[str] = set()


class BadName(ValueError):
    """A name that must not be used; its text finishes the sentence "the name ..."."""


def normal_name(raw: str) -> str:
    """Return ``raw`` as a relative posix name without ``.`` parts and doubled slashes.

    The root itself (``./``) is the empty string. Raises BadName if ``raw`` is unsafe.
    """
    if _USUAL_NAME.fullmatch(raw):
        return raw
    if raw.startswith("/"):
        raise BadName("is absolute")
    if any(ord(character) < 32 or ord(character) == 127 for character in raw):
        raise BadName("contains a control character")
    parts = [part for part in raw.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise BadName("leaves its folder ('..')")
    try:
        sizes = [len(part.encode()) for part in parts]
    except UnicodeEncodeError as exc:
        raise BadName("is not UTF-8") from exc
    if max(sizes, default=0) > MAX_PART_BYTES or sum(sizes) + len(sizes) > MAX_NAME_BYTES:
        raise BadName("is too long")
    return "/".join(parts)


class NameSet:
    """File names that differ on any file system, also if it ignores case or normalizes accents."""

    def __init__(self) -> None:
        self._files: set[str] = set()
        self._folders: set[str] = set()

    def add(self, name: str) -> None:
        """Add a name from ``normal_name``. Raises BadName if it equals an earlier one on some file system."""
        key = _folded(name)
        parents = set(itertools.accumulate(key.split("/")[:-1], "{}/{}".format)) if "/" in key else _NONE
        if key in self._files:
            raise BadName("occurs twice (upper and lower case, accents and './' don't make it another)")
        if key in self._folders or parents & self._files:
            raise BadName("is a file and a folder at once")
        self._files.add(key)
        self._folders |= parents


def _folded(name: str) -> str:
    if name.isascii():
        return name.lower()
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name).casefold())
