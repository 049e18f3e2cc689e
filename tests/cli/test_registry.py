"""The registry client answers challenges, follows redirects without credentials, and codes each failure."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from cli.registry.client import Registry
from cli.registry.image_reference import ImageReference, parse_reference
from errors.image import ImageNotFound, RegistryAccessDenied, RegistryFailed

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
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(self)) for _ in range(2)]
        for server in self._servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        self.host, self.storage = (f"127.0.0.1:{server.server_port}" for server in self._servers)

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()


def _handler(state: RegistryStandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
            pass

        def _answer(self, status: int, body: bytes = b"", **headers: str) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name.replace("_", "-"), value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def _do(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            authorization = self.headers["Authorization"]
            state.requests.append((self.command, self.path, authorization))
            parts = urlsplit(self.path)
            if parts.path == "/token":
                self._answer(200, b'{"token": "t0ken"}')
            elif self.headers["Host"] == state.storage:
                self._answer(200, state.blob)
            elif authorization != "Bearer t0ken":
                realm = f'Bearer realm="http://{state.host}/token?a=b",service="stand-in"'
                self._answer(401, WWW_Authenticate=realm)
            elif state.status != 200:
                self._answer(state.status)
            elif self.command == "POST" and "mount" in parts.query:
                self._answer(201)
            elif self.command == "POST":
                self._answer(202, Location="/uploads/1?state=s")
            elif self.command == "PUT":
                state.stored[self.path] = content
                self._answer(201)
            elif "/blobs/" in self.path and self.command == "GET":
                self._answer(307, Location=f"http://{state.storage}/blob?signature=s3cret")
            elif self.path.endswith("/manifests/there"):
                self._answer(200, b'{"layers": []}', Content_Type="application/x")
            else:
                self._answer(404)

        do_GET = do_HEAD = do_POST = do_PUT = _do  # noqa: N815 (the base class looks for these names)

    return Handler


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[RegistryStandIn]:
    server = RegistryStandIn()
    auths = {server.host: {"auth": CREDENTIALS.removeprefix("Basic ")}}
    (tmp_path / "config.json").write_text(json.dumps({"auths": auths}))
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    yield server
    server.close()


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


def test_a_refusal_and_a_registry_that_is_not_there_are_coded(
    server: RegistryStandIn, registry: Registry, reference: ImageReference
) -> None:
    refusals = {403: RegistryAccessDenied, 404: ImageNotFound, 429: RegistryFailed, 503: RegistryFailed}
    for server.status, error in refusals.items():
        with pytest.raises(error):
            registry.manifest(reference)
    server.close()
    with pytest.raises(RegistryFailed, match="nothing listens there"):
        registry.manifest(reference)
