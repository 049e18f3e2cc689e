"""Upload a finished engine.tar to the upload URL of the Cog server, straight from the disk.

Cog's own upload reads the whole file into memory (twice) and gives up after 25 seconds, so this module does
it instead, by the same protocol: PUT to ``<upload URL>/<file name>``. The file is then at the Location of
the answer, or else at that URL, without its query.
"""

import os
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin, urlsplit

from engine.download.pools import REQUEST_ERRORS, Pools, reason_of
from engine.download.url import checked_url
from engine.progress import Progress
from engine.redact import redact_url
from errors.build import UploadFailed

UPLOAD_URL_VARIABLE = "COG_UPLOAD_URL"
TIMEOUT_S = 120.0
"""Time limit of one read or write, not of the whole upload."""

_OPTION = re.compile("\0--upload-url[=\0]([^\0]+)")
_CHUNK_BYTES = 1 << 20


def find_upload_url() -> str | None:
    """Return COG_UPLOAD_URL, else the ``--upload-url`` of the Cog server whose worker this process is."""
    if url := os.environ.get(UPLOAD_URL_VARIABLE):
        return url
    try:
        # NOTE: Cog does not hand the option down; its worker is the server's direct child.
        command = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return None
    match = _OPTION.search(command)
    return match[1] if match is not None else None


def upload(path: Path, prefix: str, progress: Progress | None) -> str:
    """Send ``path`` to below ``prefix`` and return the URL under which it can be had. Raises UploadFailed."""
    pools = Pools(only_public=False, timeout_s=TIMEOUT_S, connections=1)
    headers = {"Content-Type": "application/x-tar", "Content-Length": str(path.stat().st_size)}
    try:
        to = checked_url(_below(prefix, path.name))
        response, url = pools.follow("PUT", to, headers, lambda: _chunks(path, progress))
        response.close()
        final = checked_url(urljoin(url.url, response.headers.get("Location", url.url)))
    except (*REQUEST_ERRORS, ValueError) as exc:
        raise UploadFailed(url=redact_url(prefix), reason=reason_of(exc), path=path) from exc
    finally:
        pools.close_idle()
    if not 200 <= response.status < 300:
        raise UploadFailed(url=redact_url(prefix), reason=f"HTTP {response.status}", path=path)
    return final._replace(query=None, auth=None).url


def _below(prefix: str, name: str) -> str:
    """Add the file's name to the path of ``prefix``, and keep the signature that stands behind it."""
    parts = urlsplit(prefix)
    return parts._replace(path=f"{parts.path.rstrip('/')}/{name}").geturl()


def _chunks(path: Path, progress: Progress | None) -> Iterator[bytes]:
    total_bytes = path.stat().st_size
    done_bytes = 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK_BYTES):
            yield chunk
            done_bytes += len(chunk)
            if progress is not None:
                progress(done_bytes, total_bytes, "uploading")
