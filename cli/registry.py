"""A small client of the registry API (OCI distribution 1.1): manifests, blobs, mounts of blobs."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any
from urllib.parse import urljoin

import httpx

from cli.image_reference import ImageReference
from cli.registry_credentials import find_credentials
from errors.image import ImageNotFound, RegistryAccessDenied, RegistryFailed

_TIMEOUT_S = 60.0
_MAX_DOCUMENT_BYTES = 16 << 20
_MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


class Registry:
    """One registry host. ``repositories``: all are read, the last one is written."""

    def __init__(self, reference: ImageReference, repositories: tuple[str, ...]) -> None:
        self.host = reference.host
        scheme = "http" if reference.is_local else "https"
        self._client = httpx.Client(
            base_url=f"{scheme}://{self.host}", timeout=_TIMEOUT_S, follow_redirects=True
        )
        self._scopes = [f"repository:{each}:pull" for each in repositories[:-1]]
        self._scopes.append(f"repository:{repositories[-1]}:pull,push")

    def __enter__(self) -> Registry:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._client.close()

    def manifest(self, reference: ImageReference) -> dict[str, Any]:
        """The manifest, or index of manifests, of an image. Raises E1402, E1403, E2501."""
        url = f"/v2/{reference.path}/manifests/{reference.version}"
        response = self._request(
            "GET", url, "read a manifest", headers={"Accept": ", ".join(_MANIFEST_TYPES)}
        )
        if response.status_code == httpx.codes.NOT_FOUND:
            raise ImageNotFound(reference=reference)
        document = self._document(response, "read a manifest")
        document.setdefault("mediaType", response.headers.get("Content-Type", ""))
        return document

    def document(self, repository: str, digest: str) -> dict[str, Any]:
        """A JSON blob, checked against its digest."""
        action = f"read {digest}"
        response = self._request("GET", f"/v2/{repository}/blobs/{digest}", action)
        if f"sha256:{hashlib.sha256(response.content).hexdigest()}" != digest:
            raise self._failed(action, f"HTTP {response.status_code}, and not that content")
        return self._document(response, action)

    def mount(self, digest: str, source: str, repository: str) -> None:
        """Make a blob of ``source`` available in ``repository`` without transferring it."""
        action = f"let {repository} share {digest} of {source}"
        if self._request("HEAD", f"/v2/{repository}/blobs/{digest}", action).is_success:
            return
        url = f"/v2/{repository}/blobs/uploads/"
        response = self._request("POST", url, action, params={"mount": digest, "from": source})
        if response.status_code != httpx.codes.CREATED:
            raise self._failed(action, f"HTTP {response.status_code}")

    def upload(self, repository: str, content: bytes) -> str:
        """Upload a blob; returns its digest."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        action = f"store {digest} in {repository}"
        if self._request("HEAD", f"/v2/{repository}/blobs/{digest}", action).is_success:
            return digest
        response = self._request("POST", f"/v2/{repository}/blobs/uploads/", action)
        if response.status_code != httpx.codes.ACCEPTED or "Location" not in response.headers:
            raise self._failed(action, f"HTTP {response.status_code}")
        place = httpx.URL(urljoin(str(response.url), response.headers["Location"]))
        headers = {"Content-Type": "application/octet-stream"}
        url = str(place.copy_add_param("digest", digest))
        response = self._request("PUT", url, action, content=content, headers=headers)
        if response.status_code != httpx.codes.CREATED:
            raise self._failed(action, f"HTTP {response.status_code}")
        return digest

    def put_manifest(self, reference: ImageReference, manifest: dict[str, Any]) -> str:
        """Upload a manifest under the tag of the reference; returns its digest."""
        content = json.dumps(manifest, indent=2).encode()
        action = f"store {reference}"
        response = self._request(
            "PUT",
            f"/v2/{reference.path}/manifests/{reference.tag}",
            action,
            content=content,
            headers={"Content-Type": str(manifest["mediaType"])},
        )
        if response.status_code != httpx.codes.CREATED:
            raise self._failed(action, f"HTTP {response.status_code}")
        return f"sha256:{hashlib.sha256(content).hexdigest()}"

    def _request(self, method: str, url: str, action: str, **options: Any) -> httpx.Response:
        with self._translated(action):
            response = self._client.request(method, url, **options)
            if response.status_code == httpx.codes.UNAUTHORIZED and self._log_in(response):
                response = self._client.request(method, url, **options)
        if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise RegistryAccessDenied(host=self.host, action=action, status=response.status_code)
        if response.is_server_error or response.status_code == httpx.codes.TOO_MANY_REQUESTS:
            raise self._failed(action, f"HTTP {response.status_code}")
        return response

    def _log_in(self, response: httpx.Response) -> bool:
        """Authenticate as the registry's challenge requires: with a token, or with user and password."""
        kind, _, rest = response.headers.get("WWW-Authenticate", "").partition(" ")
        credentials = find_credentials(self.host)
        if kind.lower() == "basic" and credentials is not None:
            self._client.auth = credentials
            return True
        facts = dict(_CHALLENGE.findall(rest))
        if kind.lower() != "bearer" or "realm" not in facts:
            return False
        parameters = [("service", facts.get("service", "")), *(("scope", each) for each in self._scopes)]
        # NOTE: this request has its own credentials, and must not have the registry's Authorization header.
        answer = httpx.get(facts["realm"], params=parameters, auth=credentials, timeout=_TIMEOUT_S)
        token = self._document(answer, "give a token") if answer.is_success else {}
        bearer = token.get("token") or token.get("access_token")
        if not bearer:
            return False
        self._client.headers["Authorization"] = f"Bearer {bearer}"
        return True

    @contextmanager
    def _translated(self, action: str) -> Iterator[None]:
        """Translate errors of httpx."""
        try:
            yield
        except (httpx.HTTPError, httpx.InvalidURL) as exc:
            raise self._failed(action, str(exc) or type(exc).__name__) from exc

    def _document(self, response: httpx.Response, action: str) -> dict[str, Any]:
        if not response.is_success or len(response.content) > _MAX_DOCUMENT_BYTES:
            raise self._failed(action, f"HTTP {response.status_code}, {len(response.content)} bytes")
        try:
            document = response.json()
        except ValueError as exc:
            raise self._failed(action, "its answer is no JSON") from exc
        if not isinstance(document, dict):
            raise self._failed(action, "its answer is no JSON object")
        return document

    def _failed(self, action: str, reason: str) -> RegistryFailed:
        return RegistryFailed(host=self.host, action=action, reason=reason)
