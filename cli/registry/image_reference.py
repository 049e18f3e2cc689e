"""Image references: ``[host[:port]/]path[:tag][@digest]``, parsed as Docker does it."""

import re
from dataclasses import dataclass

from errors.image import ImageReferenceInvalid

_DOCKER_HUB = "registry-1.docker.io"
_PATH = re.compile(r"[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:\.|_|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_LOCAL_HOST = re.compile(r"(localhost|\[::1\]|127(\.[0-9]{1,3}){3})(:[0-9]+)?")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_EXPECTED = "an image as host/path:tag, such as registry.example.com/team/llama:1"


@dataclass(frozen=True)
class ImageReference:
    """Parts of a reference. ``tag`` defaults to "latest"; ``digest`` overrides it."""

    host: str
    path: str
    tag: str
    digest: str | None = None

    @property
    def version(self) -> str:
        """The digest or tag by which the registry finds this image."""
        return self.digest or self.tag

    @property
    def is_local(self) -> bool:
        """True if plain HTTP is allowed: only for a registry on this machine, as in Docker."""
        return _LOCAL_HOST.fullmatch(self.host) is not None

    def __str__(self) -> str:
        return f"{self.host}/{self.path}" + (f"@{self.digest}" if self.digest else f":{self.tag}")


def parse_reference(text: object, name: str) -> ImageReference:
    """Parse ``text``, the value of ``name``. Raises E1401."""
    if not isinstance(text, str) or not text:
        raise ImageReferenceInvalid(name=name, expected=_EXPECTED, value=text)
    rest, _, digest = text.partition("@")
    first, slash, other = rest.partition("/")
    is_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    host, rest = (first, other) if is_host else (_DOCKER_HUB, rest)
    path, _, tag = rest.partition(":")
    if host in ("docker.io", "index.docker.io", _DOCKER_HUB):
        host, path = _DOCKER_HUB, path if "/" in path else f"library/{path}"
    is_right = _PATH.fullmatch(path) and (not tag or _TAG.fullmatch(tag))
    if not is_right or (digest and not _DIGEST.fullmatch(digest)) or text.endswith((":", "@")):
        raise ImageReferenceInvalid(name=name, expected=_EXPECTED, value=text)
    return ImageReference(host, path, tag or "latest", digest or None)
