"""Files of a model on the Hugging Face Hub, kept in a cache that holds only whole, checked files.

<cache>/hub/<owner>--<name>/refs/<revision>         the commit that a branch or tag meant last
                            commits/<commit>.json   the commit's files: name, size, hash
                            blobs/<hash>            a file's content, there only when whole and checked
                            blobs/<hash>.incomplete what has arrived of it, continued by the next try
"""

import hashlib
import os
import re
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from typing import Annotated, BinaryIO
from urllib.parse import quote

import httpx2
from huggingface_hub import HfApi, constants, get_hf_file_metadata, hf_hub_url, is_offline_mode
from huggingface_hub.errors import HfHubHTTPError, HFValidationError, OfflineModeIsEnabled
from huggingface_hub.hf_api import ModelInfo
from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError

from builder.weights.checkpoint import DTYPES
from builder.weights.downloads import Digest, Download, beginning, fetch_all
from builder.weights.files import build_error, need_space
from engine.download.http import retry_after_s
from engine.progress import Progress
from engine.redact import redact_text, redact_url
from engine.staging import staged
from engine.words import duration_in_words
from errors.build import DownloadCorrupt, DownloadFailed, NotEnoughSpace
from errors.build_config import GgufUnsupported, ModelAccessDenied, ModelNotFound, ModelUnusable
from errors.coded_error import CodedError

_SHA256 = re.compile(r"\A[0-9a-f]{64}\Z")
_GIT_SHA1 = re.compile(r"\A[0-9a-f]{40}\Z")
_FOREIGN = (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError, TypeError, KeyError, AttributeError)
"""Exceptions of huggingface_hub; the last three for a response that is JSON but not a Hub's."""
_WAITS_S = (1.0, 2.0, 4.0)
"""Waits between requests that the Hub refuses for their rate, unless it asks for a longer one."""
_LONGEST_WAIT_S = 60.0
"""Longest wait. A longer one that the Hub asks for is shown to the user instead."""
_CHECK_NETWORK = "check the name and the network, then start it again"


class HubFile(BaseModel):
    """A file as the Hub announces it; without a hash, only the size can be verified."""

    model_config = ConfigDict(frozen=True)
    name: str
    size_bytes: int | None
    sha256: Annotated[str, Field(pattern=_SHA256)] | None
    git_sha1: Annotated[str, Field(pattern=_GIT_SHA1)] | None


class Snapshot(BaseModel):
    """One commit of a model: what ``revision`` meant when the Hub was asked."""

    model_config = ConfigDict(frozen=True, protected_namespaces=())
    model_id: str
    commit: Annotated[str, Field(pattern=_GIT_SHA1)]
    files: tuple[HubFile, ...]
    weight_dtype: str | None = None
    """Commonest data type of the weights in safetensors files; None if the Hub does not tell it."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(file.name for file in self.files)


class Hub:
    """Hub at HF_ENDPOINT, with ``token`` or anonymous; in offline mode only the cache."""

    def __init__(self, *, token: SecretStr | None, cache: Path) -> None:
        self.endpoint = os.environ.get("HF_ENDPOINT", constants.ENDPOINT).rstrip("/")
        self._token: str | bool = token.get_secret_value() if token is not None else False
        self._folder = cache / "hub"

    def snapshot(self, model_id: str, revision: str) -> Snapshot:
        """Return commit and files of ``model_id`` at ``revision``, as the Hub lists them for the token."""
        if is_offline_mode() and (known := self._known(model_id, revision)) is not None:
            return known
        try:
            found = self._ask(model_id, revision)
        except _FOREIGN as exc:
            raise self._translated(exc, model_id, revision) from exc
        self._remember(found, revision)
        return found

    def fetch(self, snapshot: Snapshot, names: Collection[str], progress: Progress | None) -> dict[str, Path]:
        """Download the files ``names`` of ``snapshot`` and return the path of each one's checked content."""
        wanted = [file for file in snapshot.files if file.name in names]
        try:
            downloads = {file.name: self._download(snapshot, file) for file in wanted}
            missing = [download for download in downloads.values() if not download.destination.exists()]
            if len(missing) < len(wanted) and not is_offline_mode():
                self._ask_for_access(downloads.values())
            missing_bytes = sum(download.missing_bytes for download in missing)
            if missing and is_offline_mode():
                raise OfflineModeIsEnabled
            need_space(self._folder, missing_bytes, purpose="the download")
            fetch_all(missing, progress)
        except (DownloadCorrupt, NotEnoughSpace):
            raise
        except (CodedError, *_FOREIGN) as exc:
            kept = ": what has arrived is kept and continued"
            raise self._translated(exc, snapshot.model_id, snapshot.commit, kept) from exc
        return {name: download.destination for name, download in downloads.items()}

    @contextmanager
    def beginning(self, snapshot: Snapshot, name: str) -> Iterator[BinaryIO]:
        """Provide a stream of the file ``name`` of ``snapshot``, which downloads only what is read of it."""
        file = next(file for file in snapshot.files if file.name == name)
        try:
            if is_offline_mode():
                raise OfflineModeIsEnabled
            with beginning(self._download(snapshot, file)) as arriving:
                yield arriving
        except (ModelUnusable, GgufUnsupported):
            raise
        except (CodedError, *_FOREIGN) as exc:
            raise self._translated(exc, snapshot.model_id, snapshot.commit) from exc

    def missing_bytes(self, snapshot: Snapshot, names: Collection[str]) -> int:
        """Return how many bytes of the files ``names`` ``fetch`` would download."""
        try:
            files = [file for file in snapshot.files if file.name in names]
            return sum(self._download(snapshot, file).missing_bytes for file in files)
        except _FOREIGN as exc:
            raise self._translated(exc, snapshot.model_id, snapshot.commit) from exc

    def _ask(self, model_id: str, revision: str) -> Snapshot:
        info = self._told_about(model_id, revision)
        files = [
            HubFile(
                name=file.rfilename,
                size_bytes=file.size,
                sha256=file.lfs.sha256 if file.lfs is not None else None,
                git_sha1=file.blob_id if file.lfs is None else None,
            )
            for file in info.siblings or []
        ]
        told = (info.safetensors.parameters if info.safetensors is not None else None) or {}
        dtype = DTYPES.get(max(told, key=told.__getitem__, default=""))
        return Snapshot(model_id=model_id, commit=str(info.sha), files=tuple(files), weight_dtype=dtype)

    def _told_about(self, model_id: str, revision: str) -> ModelInfo:
        """Ask the Hub about a model. If it limits the rate of requests, wait as long as it asks."""
        api = HfApi(endpoint=self.endpoint, token=self._token)
        for wait_s in _WAITS_S:
            try:
                return api.model_info(model_id, revision=revision, files_metadata=True)
            except HfHubHTTPError as exc:
                asked_s = retry_after_s(exc.response.headers)
                if exc.response.status_code != HTTPStatus.TOO_MANY_REQUESTS or asked_s > _LONGEST_WAIT_S:
                    raise
                time.sleep(max(wait_s, asked_s))
        return api.model_info(model_id, revision=revision, files_metadata=True)

    def _download(self, snapshot: Snapshot, file: HubFile) -> Download:
        url = hf_hub_url(snapshot.model_id, file.name, revision=snapshot.commit, endpoint=self.endpoint)
        if file.sha256 is None and file.git_sha1 is None and not is_offline_mode():
            file = self._asked_about(url, file)
        digest, content_key = _digest(snapshot, file)
        return Download(
            model_id=snapshot.model_id,
            name=file.name,
            url=url,
            authorization=f"Bearer {self._token}" if self._token else None,
            destination=self._repository(snapshot.model_id) / "blobs" / content_key,
            size_bytes=file.size_bytes,
            digest=digest,
        )

    def _ask_for_access(self, downloads: Collection[Download]) -> None:
        """Ask the Hub for the largest file that is cached already, and raise its error if it refuses access.

        The cache also serves callers with other tokens: a caller without access to a model must not get it
        here.
        """
        present = [download for download in downloads if download.destination.exists()]
        largest = max(present, key=lambda download: download.size_bytes or 0)
        get_hf_file_metadata(largest.url, token=self._token, endpoint=self.endpoint, retry_on_errors=True)

    def _asked_about(self, url: str, file: HubFile) -> HubFile:
        """Complete ``file`` from the headers of its URL: mirrors of the Hub may list only names."""
        told = get_hf_file_metadata(url, token=self._token, endpoint=self.endpoint, retry_on_errors=True)
        etag = told.etag or ""
        return file.model_copy(
            update={
                "size_bytes": told.size,
                "sha256": etag if _SHA256.fullmatch(etag) else None,
                "git_sha1": etag if _GIT_SHA1.fullmatch(etag) else None,
            }
        )

    def _repository(self, model_id: str) -> Path:
        return self._folder / model_id.replace("/", "--")

    def _reference(self, model_id: str, revision: str) -> Path:
        return self._repository(model_id) / "refs" / quote(revision, safe="")

    def _known(self, model_id: str, revision: str) -> Snapshot | None:
        reference = self._reference(model_id, revision)
        try:
            commit = reference.read_text() if reference.exists() else revision
            listing = self._repository(model_id) / "commits" / f"{quote(commit, safe='')}.json"
            return Snapshot.model_validate_json(listing.read_bytes()) if listing.exists() else None
        except (OSError, ValidationError):
            return None

    def _remember(self, snapshot: Snapshot, revision: str) -> None:
        listing = self._repository(snapshot.model_id) / "commits" / f"{snapshot.commit}.json"
        with staged(listing) as path:
            path.write_text(snapshot.model_dump_json())
        with staged(self._reference(snapshot.model_id, revision)) as path:
            path.write_text(snapshot.commit)

    def _translated(self, exc: Exception, model_id: str, revision: str, kept: str = "") -> CodedError:
        """Translate an error of huggingface_hub, of the network or of the cache; no other place does."""
        endpoint = redact_url(self.endpoint)
        status: object = exc.response.status_code if isinstance(exc, HfHubHTTPError) else None
        if isinstance(exc, CodedError):
            status = exc.facts.get("status")
        if status == HTTPStatus.NOT_FOUND or isinstance(exc, HFValidationError):
            return ModelNotFound(endpoint=endpoint, model_id=model_id, revision=revision)
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            remedy = (
                "check that the token may read it and that its owner has accepted the model's licence"
                if self._token
                else "check its name, or accept its licence on the Hub and give your token (HF_TOKEN, or "
                "hf_token in a build config)"
            )
            return ModelAccessDenied(endpoint=endpoint, model_id=model_id, status=status, remedy=remedy)
        remedy = _CHECK_NETWORK + kept
        if status == HTTPStatus.TOO_MANY_REQUESTS:
            reason = "HTTP 429: it gets too many requests from this address or token"
            wait_s = retry_after_s(exc.response.headers) if isinstance(exc, HfHubHTTPError) else 0.0
            remedy = f"try again in {duration_in_words(wait_s)}" if wait_s else "try again later"
            remedy += "" if self._token else ", or give a token (HF_TOKEN)"
        elif status is not None:
            reason = f"HTTP {status}"
        elif isinstance(exc, CodedError):
            reason = str(exc.facts.get("reason", exc.sentence))
        elif isinstance(exc, OfflineModeIsEnabled):
            remedy = "unset HF_HUB_OFFLINE to download it"
            reason = f"HF_HUB_OFFLINE is set and {model_id}@{revision} is not whole in the cache"
        elif isinstance(exc, httpx2.TimeoutException):
            reason = "it does not answer in time"
        elif isinstance(exc, httpx2.HTTPError):
            reason = redact_text(str(exc)) or type(exc).__name__
        elif isinstance(exc, OSError):
            return build_error(exc, self._folder)
        else:
            reason, remedy = "its answer is not that of a Hugging Face Hub", "check HF_ENDPOINT"
        if "/" not in model_id and not Path(model_id).exists():
            remedy += f"; if a file or folder was meant, there is no {model_id} here"
        return DownloadFailed(what=model_id, endpoint=endpoint, reason=reason, remedy=remedy)


def _digest(snapshot: Snapshot, file: HubFile) -> tuple[Digest | None, str]:
    """Return the hash to check ``file`` against, and the name of its content in the cache."""
    if announced := file.sha256 or file.git_sha1:
        return Digest("sha256" if file.sha256 else "git-sha1", announced), announced
    unchecked = hashlib.sha256(f"{snapshot.commit}/{file.name}".encode()).hexdigest()
    return None, f"unchecked-{unchecked}"
