"""A server on loopback that speaks as much of the Hugging Face Hub's API as its client asks of it.

A stand-in, because the Hub can't be reached from a test; the client that talks to it is the real one.
Small files answer at /resolve; large ones (``lfs``) redirect to a second server, as to the Hub's CDN.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import MappingProxyType
from typing import Any
from urllib.parse import unquote, urlsplit


@dataclass
class Request:
    method: str
    path: str
    range: str | None
    authorization: str | None
    host: str


@dataclass
class Repository:
    """One model: ``files`` at ``commit``, and what goes wrong when they are asked for."""

    files: dict[str, bytes]
    commit: str = "c" * 40
    token: str | None = None
    refusal: int = 401
    lists_for_all: bool = False
    """The token is asked for with the files only, as with gated models."""
    listing: bytes | None = None
    """Sent instead of the JSON that tells commit and files."""
    lfs: set[str] = field(default_factory=set)
    cut_at: dict[str, list[int]] = field(default_factory=dict)
    """Lengths by file, after which an answer breaks off, one for each time, from the first request on."""
    sent_instead: dict[str, bytes] = field(default_factory=dict)
    ignores_ranges: bool = False
    lists_hashes: bool = True
    held: dict[str, threading.Event] = field(default_factory=dict)
    """Events by file: its bytes are sent once it is set."""
    asked: dict[str, threading.Event] = field(default_factory=dict)
    """Events by file, set as soon as it is asked for."""


class HubServer:
    """``url`` is what HF_ENDPOINT must be; ``requests`` is what was asked so far."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[Request] = []
        self.limits: list[dict[str, str]] = []
        """Headers of 429 for the next requests about models, one each."""
        self._servers = [ThreadingHTTPServer(("127.0.0.1", 0), _handler(self)) for _ in range(2)]
        for server in self._servers:
            server.daemon_threads = True
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        self.url, self.cdn_url = (f"http://127.0.0.1:{server.server_port}" for server in self._servers)

    def close(self) -> None:
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def asked_for(self, name: str, method: str = "GET") -> list[Request]:
        return [
            request for request in self.requests if request.path.endswith(name) and request.method == method
        ]


def _handler(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *args: object) -> None:
            pass

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            hub.requests.append(
                Request(
                    self.command,
                    urlsplit(self.path).path,
                    self.headers.get("Range"),
                    self.headers.get("Authorization"),
                    self.headers.get("Host", ""),
                )
            )
            parts = unquote(urlsplit(self.path).path).strip("/").split("/")
            if parts[:2] == ["api", "models"]:
                self._info(parts[2:])
            elif parts[0] == "cdn":
                self._file("/".join(parts[1:3]), "/".join(parts[3:]))
            elif "resolve" in parts:
                at = parts.index("resolve")
                self._resolve("/".join(parts[:at]), "/".join(parts[at + 2 :]))
            else:
                self._refuse(404, "")

        def _info(self, parts: list[str]) -> None:
            model_id, _, revision = "/".join(parts).partition("/revision/")
            repository = hub.repositories.get(model_id)
            if hub.limits:
                self._refuse(429, "", hub.limits.pop(0))
            elif repository is None:
                self._refuse(404, "RepoNotFound")
            elif self._is_denied(repository) and not repository.lists_for_all:
                self._refuse(repository.refusal, "GatedRepo")
            elif revision not in ("", "main", repository.commit):
                self._refuse(404, "RevisionNotFound")
            else:
                files = [_listed(name, repository) for name in repository.files]
                told = {"id": model_id, "sha": repository.commit, "siblings": files}
                self._json(repository.listing or json.dumps(told).encode())

        def _resolve(self, model_id: str, name: str) -> None:
            repository = hub.repositories[model_id]
            if self._is_denied(repository):
                self._refuse(repository.refusal, "GatedRepo")
            elif name not in repository.lfs:
                self._file(model_id, name)
            else:
                content = repository.files[name]
                self.send_response(302)
                self.send_header("Location", f"{hub.cdn_url}/cdn/{model_id}/{name}")
                self.send_header("X-Repo-Commit", repository.commit)
                self.send_header("X-Linked-Etag", f'"{hashlib.sha256(content).hexdigest()}"')
                self.send_header("X-Linked-Size", str(len(content)))
                self.send_header("Content-Length", "0")
                self.end_headers()

        def _file(self, model_id: str, name: str) -> None:
            repository = hub.repositories[model_id]
            content = repository.sent_instead.get(name, repository.files[name])
            start = 0
            if (wanted := self.headers.get("Range")) and not repository.ignores_ranges:
                start = int(wanted.removeprefix("bytes=").partition("-")[0])
            if start and start >= len(content):
                self._refuse(416, "")
                return
            self.send_response(206 if start else 200)
            if start:
                self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
            self.send_header("ETag", f'"{_git_sha1(repository.files[name])}"')
            self.send_header("X-Repo-Commit", repository.commit)
            self.send_header("Content-Length", str(len(content) - start))
            self.end_headers()
            if self.command == "GET":
                self._send(repository, name, content[start:])

        def _send(self, repository: Repository, name: str, content: bytes) -> None:
            if name in repository.asked:
                repository.asked[name].set()
            if name in repository.held:
                repository.held[name].wait(60)
            cuts = repository.cut_at.get(name, [])
            self.close_connection = bool(cuts)
            self.wfile.write(content[: cuts.pop(0)] if cuts else content)

        def _is_denied(self, repository: Repository) -> bool:
            given = self.headers.get("Authorization")
            return repository.token is not None and given != f"Bearer {repository.token}"

        def _json(self, text: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def _refuse(self, status: int, code: str, headers: Mapping[str, str] = MappingProxyType({})) -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if code:
                self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

    return Handler


def _listed(name: str, repository: Repository) -> dict[str, Any]:
    content = repository.files[name]
    listed: dict[str, Any] = {"rfilename": name}
    if repository.lists_hashes:
        listed |= {"size": len(content), "blobId": _git_sha1(content)}
        if name in repository.lfs:
            sha256 = hashlib.sha256(content).hexdigest()
            listed["lfs"] = {"sha256": sha256, "size": len(content), "pointerSize": 134}
    return listed


def _git_sha1(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
