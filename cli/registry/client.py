"""A small client of the registry API (OCI distribution 1.1): manifests, blobs, mounts of blobs."""

import hashlib
import json
import re
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing
from http import HTTPStatus
from typing import Any, NamedTuple
from urllib.parse import urlencode, urljoin

from cli.registry.credentials import find_credentials
from cli.registry.image_reference import ImageReference
from engine.download.pools import REQUEST_ERRORS, Pools, reason_of
from engine.download.url import basic, checked_url
from errors.image import ImageNotFound, RegistryAccessDenied, RegistryFailed

_TIMEOUT_S = 60.0
_MAX_DOCUMENT_BYTES = 16 << 20
_MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_BYTES = {"Content-Type": "application/octet-stream"}
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')


class _Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    content: bytes
    """At most one byte more than _MAX_DOCUMENT_BYTES."""
    url: str
    """URL to which the redirects led."""

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300


class Registry(AbstractContextManager["Registry"]):
    """One registry host. ``repositories``: all are read, the last one is written."""

    def __init__(self, reference: ImageReference, repositories: tuple[str, ...]) -> None:
        self.host = reference.host
        self._origin = f"{'http' if reference.is_local else 'https'}://{self.host}"
        self._pools = Pools(only_public=False, timeout_s=_TIMEOUT_S, connections=1)
        self._authorization: dict[str, str] = {}
        self._scopes = [f"repository:{each}:pull" for each in repositories[:-1]]
        self._scopes.append(f"repository:{repositories[-1]}:pull,push")

    def __exit__(self, *exception: object) -> None:
        self._pools.close_idle()

    def manifest(self, reference: ImageReference) -> dict[str, Any]:
        """Get the manifest, or index of manifests, of an image. Raises E1402, E1403, E2501."""
        url = f"/v2/{reference.path}/manifests/{reference.version}"
        response = self._request("GET", url, "read a manifest", Accept=", ".join(_MANIFEST_TYPES))
        if response.status == HTTPStatus.NOT_FOUND:
            raise ImageNotFound(reference=reference)
        document = self._document(response, "read a manifest")
        document.setdefault("mediaType", response.headers.get("Content-Type", ""))
        return document

    def document(self, repository: str, digest: str) -> dict[str, Any]:
        """Get a JSON blob and check its digest."""
        action = f"read {digest}"
        response = self._request("GET", f"/v2/{repository}/blobs/{digest}", action)
        if f"sha256:{hashlib.sha256(response.content).hexdigest()}" != digest:
            raise self._failed(action, f"HTTP {response.status}, and not that content")
        return self._document(response, action)

    def mount(self, digest: str, source: str, repository: str) -> None:
        """Make a blob of ``source`` available in ``repository`` without transferring it."""
        action = f"let {repository} share {digest} of {source}"
        if self._request("HEAD", f"/v2/{repository}/blobs/{digest}", action).is_success:
            return
        url = f"/v2/{repository}/blobs/uploads/"
        query = urlencode({"mount": digest, "from": source})
        self._request("POST", f"{url}?{query}", action, expected=HTTPStatus.CREATED)

    def upload(self, repository: str, content: bytes) -> str:
        """Upload a blob and return its digest."""
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        action = f"store {digest} in {repository}"
        if self._request("HEAD", f"/v2/{repository}/blobs/{digest}", action).is_success:
            return digest
        url = f"/v2/{repository}/blobs/uploads/"
        response = self._request("POST", url, action, expected=HTTPStatus.ACCEPTED)
        if "Location" not in response.headers:
            raise self._failed(action, "no place for it")
        place = urljoin(response.url, response.headers["Location"])
        url = f"{place}{'&' if '?' in place else '?'}{urlencode({'digest': digest})}"
        self._request("PUT", url, action, content, expected=HTTPStatus.CREATED, **_BYTES)
        return digest

    def put_manifest(self, reference: ImageReference, manifest: dict[str, Any]) -> str:
        """Upload a manifest under the tag of the reference and return its digest."""
        content = json.dumps(manifest, indent=2).encode()
        action = f"store {reference}"
        url = f"/v2/{reference.path}/manifests/{reference.tag}"
        media_type = {"Content-Type": str(manifest["mediaType"])}
        self._request("PUT", url, action, content, expected=HTTPStatus.CREATED, **media_type)
        return f"sha256:{hashlib.sha256(content).hexdigest()}"

    def _request(
        self,
        method: str,
        url: str,
        action: str,
        content: bytes | None = None,
        *,
        expected: HTTPStatus | None = None,
        **headers: str,
    ) -> _Answer:
        """Send a request, and authenticate if the registry asks for it. ``url`` may be a path on it.

        The registry may name another host for an upload. That host gets no credentials.
        """
        url = urljoin(self._origin, url)
        is_own = url.startswith(f"{self._origin}/")
        answer = self._send(method, url, action, self._authorization if is_own else {}, headers, content)
        if is_own and answer.status == HTTPStatus.UNAUTHORIZED and self._log_in(answer):
            answer = self._send(method, url, action, self._authorization, headers, content)
        if answer.status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise RegistryAccessDenied(host=self.host, action=action, status=answer.status)
        is_failure = answer.status >= 500 or answer.status == HTTPStatus.TOO_MANY_REQUESTS
        if is_failure or (expected is not None and answer.status != expected):
            raise self._failed(action, f"HTTP {answer.status}")
        return answer

    def _send(
        self,
        method: str,
        url: str,
        action: str,
        authorization: Mapping[str, str],
        headers: Mapping[str, str],
        content: bytes | None = None,
    ) -> _Answer:
        try:
            response, final = self._pools.follow(
                method, checked_url(url), headers, lambda: content, authorization=authorization
            )
            with closing(response):
                body = response.read(_MAX_DOCUMENT_BYTES + 1)
        except REQUEST_ERRORS as exc:
            raise self._failed(action, reason_of(exc)) from exc
        return _Answer(response.status, response.headers, body, final.url)

    def _log_in(self, response: _Answer) -> bool:
        """Authenticate as the registry's challenge requires: with a token, or with user and password."""
        kind, _, rest = response.headers.get("WWW-Authenticate", "").partition(" ")
        found = find_credentials(self.host)
        own = {"Authorization": basic(*found)} if found is not None else {}
        if kind.lower() == "basic" and own:
            self._authorization = own
            return True
        facts = dict(_CHALLENGE.findall(rest))
        if kind.lower() != "bearer" or "realm" not in facts:
            return False
        parameters = [("service", facts.get("service", "")), *(("scope", each) for each in self._scopes)]
        url = f"{facts['realm']}{'&' if '?' in facts['realm'] else '?'}{urlencode(parameters)}"
        answer = self._send("GET", url, "give a token", own, {})
        token = self._document(answer, "give a token") if answer.is_success else {}
        bearer = token.get("token") or token.get("access_token")
        if not bearer:
            return False
        self._authorization = {"Authorization": f"Bearer {bearer}"}
        return True

    def _document(self, response: _Answer, action: str) -> dict[str, Any]:
        if not response.is_success or len(response.content) > _MAX_DOCUMENT_BYTES:
            raise self._failed(action, f"HTTP {response.status}, {len(response.content)} bytes")
        try:
            document = json.loads(response.content)
        except ValueError as exc:
            raise self._failed(action, "its answer is no JSON") from exc
        if not isinstance(document, dict):
            raise self._failed(action, "its answer is no JSON object")
        return document

    def _failed(self, action: str, reason: str) -> RegistryFailed:
        return RegistryFailed(host=self.host, action=action, reason=reason)
