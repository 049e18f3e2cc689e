"""Detect that the content of a URL changed: by ETag, Last-Modified and size."""

from __future__ import annotations

import re
from dataclasses import dataclass

from urllib3 import BaseHTTPResponse

_CONTENT_RANGE = re.compile(r"bytes (\d{1,19})-(\d{1,19})/(\d{1,19})$")


@dataclass(frozen=True)
class Version:
    """What identifies the content of a URL in the headers of a response."""

    etag: str | None
    last_modified: str | None
    size_bytes: int | None

    @property
    def is_known(self) -> bool:
        """Whether the server sends anything besides the size that changes with the content."""
        return bool(self.etag or self.last_modified)

    @property
    def if_range(self) -> str | None:
        """The value for ``If-Range``, which a weak ETag must not be."""
        return self.last_modified if not self.etag or self.etag.startswith("W/") else self.etag

    def difference(self, later: Version) -> str | None:
        """Where a later answer contradicts this one, for a message; None if it does not."""
        for name in ("etag", "last_modified", "size_bytes"):
            was, now = getattr(self, name), getattr(later, name)
            if was is not None and now is not None and was != now:
                return f"{name} was {was}, now {now}"
        return None


def version_of(response: BaseHTTPResponse) -> Version:
    content_range = range_of(response)
    if content_range is not None:
        size_bytes: int | None = content_range[1]
    else:
        size_bytes = response.length_remaining if response.status == 200 else None
    return Version(response.headers.get("ETag"), response.headers.get("Last-Modified"), size_bytes)


def range_of(response: BaseHTTPResponse) -> tuple[int, int] | None:
    """First byte and total size that a 206 states; None without a valid Content-Range."""
    match = _CONTENT_RANGE.match(response.headers.get("Content-Range", ""))
    if response.status != 206 or match is None or not int(match[1]) <= int(match[2]) < int(match[3]):
        return None
    return int(match[1]), int(match[3])
