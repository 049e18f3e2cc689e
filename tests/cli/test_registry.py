"""The registry client answers challenges, follows redirects without credentials, and codes each failure."""

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from cli.registry.client import Registry
from cli.registry.image_reference import ImageReference, parse_reference
from errors.image import ImageNotFound, RegistryAccessDenied, RegistryFailed
from tests.scripted_server import Asked, ScriptedServer, Write, head

BLOB = json.dumps({"architecture": "amd64"}).encode()
DIGEST = f"sha256:{hashlib.sha256(BLOB).hexdigest()}"
CREDENTIALS = "Basic dXNlcjpww6Rzcw=="
"""user:päss"""


class RegistryStandIn:
    """A registry that wants a bearer token and keeps its blobs on a second host, as the public ones do.

    A stand-in: Debian's registry, which tests/images uses, has no token server.
    """

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, str | None]] = []
        """Method, path and Authorization."""
        self.stored: dict[str, bytes] = {}
        self.blob = BLOB
        self.status = 200
        self.servers = [ScriptedServer(self._answer) for _ in range(2)]
        self.host, self.storage = (server.url.removeprefix("http://") for server in self.servers)

    def _answer(self, asked: Asked, write: Write) -> bool:
        authorization = asked.headers.get("authorization")
        self.requests.append((asked.method, asked.path, authorization))
        status, body, header = self._response(asked, authorization)
        write(head(status, {"Content-Length": len(body), **header}))
        write(b"" if asked.method == "HEAD" else body)
        return True

    def _response(self, asked: Asked, authorization: str | None) -> tuple[int, bytes, dict[str, str]]:
        parts = urlsplit(asked.path)
        if parts.path == "/token":
            return 200, b'{"token": "t0ken"}', {}
        if asked.headers["host"] == self.storage:
            return 200, self.blob, {}
        if authorization != "Bearer t0ken":
            realm = f'Bearer realm="http://{self.host}/token?a=b",service="stand-in"'
            return 401, b"", {"WWW-Authenticate": realm}
        if self.status != 200:
            return self.status, b"", {}
        if asked.method == "POST":
            is_mounted = "mount" in parts.query
            return 201 if is_mounted else 202, b"", {} if is_mounted else {"Location": "/uploads/1?state=s"}
        if asked.method == "PUT":
            self.stored[asked.path] = asked.body
            return 201, b"", {}
        if "/blobs/" in asked.path and asked.method == "GET":
            return 307, b"", {"Location": f"http://{self.storage}/blob?signature=s3cret"}
        if asked.path.endswith("/manifests/there"):
            return 200, b'{"layers": []}', {"Content-Type": "application/x"}
        return 404, b"", {}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RegistryStandIn]:
    server = RegistryStandIn()
    auths = {server.host: {"auth": CREDENTIALS.removeprefix("Basic ")}}
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with server.servers[0], server.servers[1]:
        yield server


@pytest.fixture
def reference(server: RegistryStandIn) -> ImageReference:
    return parse_reference(f"{server.host}/team/llama:there", "dest")


@pytest.fixture
def registry(reference: ImageReference) -> Iterator[Registry]:
    with Registry(reference, ("base/runner", reference.path)) as registry:
        yield registry


def test_the_token_is_asked_for_once_with_the_users_credentials_and_all_scopes(
    server: RegistryStandIn, registry: Registry, reference: ImageReference
) -> None:
    assert registry.manifest(reference) == {"layers": [], "mediaType": "application/x"}
    registry.manifest(reference)
    ((_, path, authorization),) = (request for request in server.requests if "/token" in request[1])
    assert authorization == CREDENTIALS
    assert parse_qs(urlsplit(path).query) == {
        "a": ["b"],
        "service": ["stand-in"],
        "scope": ["repository:base/runner:pull", "repository:team/llama:pull,push"],
    }


def test_a_blob_is_read_from_where_it_is_stored_without_the_token(
    server: RegistryStandIn, registry: Registry, reference: ImageReference
) -> None:
    assert registry.document(reference.path, DIGEST) == json.loads(BLOB)
    assert server.requests[-1] == ("GET", "/blob?signature=s3cret", None)
    server.blob = BLOB[:-1] + b" }"
    with pytest.raises(RegistryFailed, match="not that content"):
        registry.document(reference.path, DIGEST)


def test_what_is_stored_and_mounted_goes_where_the_registry_says(
    server: RegistryStandIn, registry: Registry, reference: ImageReference
) -> None:
    registry.mount(DIGEST, "base/runner", reference.path)
    assert f"mount={DIGEST.replace(':', '%3A')}&from=base%2Frunner" in server.requests[-1][1]
    assert registry.upload(reference.path, BLOB) == DIGEST
    digest = registry.put_manifest(reference, {"mediaType": "application/x"})
    assert server.stored.pop(f"/uploads/1?state=s&digest={DIGEST.replace(':', '%3A')}") == BLOB
    ((path, content),) = server.stored.items()
    assert path == "/v2/team/llama/manifests/there"
    assert digest == f"sha256:{hashlib.sha256(content).hexdigest()}"


def test_a_refusal_is_coded(server: RegistryStandIn, registry: Registry, reference: ImageReference) -> None:
    refusals = {403: RegistryAccessDenied, 404: ImageNotFound, 429: RegistryFailed, 503: RegistryFailed}
    for server.status, error in refusals.items():
        with pytest.raises(error):
            registry.manifest(reference)


def test_a_registry_that_is_not_there_is_coded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    reference = parse_reference("127.0.0.1:9/team/llama", "dest")
    with (
        Registry(reference, ("base", "team")) as registry,
        pytest.raises(RegistryFailed, match="nothing listens there"),
    ):
        registry.manifest(reference)
