"""A server on loopback that speaks as much of the Hugging Face Hub's API as its client asks of it.

A stand-in, because the Hub can't be reached from a test; the client that talks to it is the real one.
Small files answer at /resolve; large ones (``lfs``) redirect to a second server, as to the Hub's CDN.
"""

import hashlib
import json
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple
from urllib.parse import unquote, urlsplit

from typing_extensions import Self

from tests.scripted_server import Asked, ScriptedServer, Write, head


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


class _Reply(NamedTuple):
    status: int
    headers: Mapping[str, object] = MappingProxyType({})
    body: bytes = b""
    file: tuple[Repository, str] | None = None
    """File that the body is of."""


class HubServer:
    """``url`` is what HF_ENDPOINT must be; ``requests`` is what was asked so far."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.requests: list[Asked] = []
        self.limits: list[dict[str, object]] = []
        """Headers of 429 for the next requests about models, one each."""
        self._servers = [ScriptedServer(self._answer) for _ in range(2)]
        self.url, self.cdn_url = (server.url for server in self._servers)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        for server in self._servers:
            server.close()

    def asked_for(self, name: str) -> list[Asked]:
        return [each for each in self.requests if each.path.endswith(name) and each.method == "GET"]

    def _answer(self, asked: Asked, write: Write) -> bool:
        self.requests.append(asked)
        status, headers, body, file = self._reply(asked)
        write(head(status, {"Content-Length": len(body), **headers}))
        if asked.method == "HEAD" or file is None:
            write(body if asked.method == "GET" else b"")
            return True
        repository, name = file
        if name in repository.asked:
            repository.asked[name].set()
        if name in repository.held:
            repository.held[name].wait(60)
        cuts = repository.cut_at.get(name)
        if not cuts:
            write(body)
            return True
        write(body[: cuts.pop(0)])
        return False

    def _reply(self, asked: Asked) -> _Reply:
        parts = unquote(urlsplit(asked.path).path).strip("/").split("/")
        if parts[:2] == ["api", "models"]:
            return self._info(asked, parts[2:])
        if parts[0] == "cdn":
            return self._file(asked, "/".join(parts[1:3]), "/".join(parts[3:]))
        if "resolve" in parts:
            at = parts.index("resolve")
            return self._resolve(asked, "/".join(parts[:at]), "/".join(parts[at + 2 :]))
        return _Reply(404)

    def _info(self, asked: Asked, parts: list[str]) -> _Reply:
        model_id, _, revision = "/".join(parts).partition("/revision/")
        repository = self.repositories.get(model_id)
        if self.limits:
            return _Reply(429, self.limits.pop(0))
        if repository is None:
            return _Reply(404, {"X-Error-Code": "RepoNotFound"})
        if _is_denied(asked, repository) and not repository.lists_for_all:
            return _Reply(repository.refusal, {"X-Error-Code": "GatedRepo"})
        if revision not in ("", "main", repository.commit):
            return _Reply(404, {"X-Error-Code": "RevisionNotFound"})
        files = [_listed(name, repository) for name in repository.files]
        told = {"id": model_id, "sha": repository.commit, "siblings": files}
        return _Reply(
            200, {"Content-Type": "application/json"}, repository.listing or json.dumps(told).encode()
        )

    def _resolve(self, asked: Asked, model_id: str, name: str) -> _Reply:
        repository = self.repositories[model_id]
        if _is_denied(asked, repository):
            return _Reply(repository.refusal, {"X-Error-Code": "GatedRepo"})
        if name not in repository.lfs:
            return self._file(asked, model_id, name)
        content = repository.files[name]
        headers = {
            "Location": f"{self.cdn_url}/cdn/{model_id}/{name}",
            "X-Repo-Commit": repository.commit,
            "X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"',
            "X-Linked-Size": len(content),
        }
        return _Reply(302, headers)

    def _file(self, asked: Asked, model_id: str, name: str) -> _Reply:
        repository = self.repositories[model_id]
        content = repository.sent_instead.get(name, repository.files[name])
        start = 0 if repository.ignores_ranges else asked.first or 0
        if start and start >= len(content):
            return _Reply(416)
        span = f"bytes {start}-{len(content) - 1}/{len(content)}" if start else None
        headers = {"ETag": f'"{_git_sha1(repository.files[name])}"', "X-Repo-Commit": repository.commit}
        headers["Content-Range"] = span
        return _Reply(206 if start else 200, headers, content[start:], (repository, name))


def _is_denied(asked: Asked, repository: Repository) -> bool:
    return repository.token is not None and asked.headers.get("authorization") != f"Bearer {repository.token}"


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
