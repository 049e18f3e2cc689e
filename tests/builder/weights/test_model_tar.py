"""A model's tar is unpacked as it arrives, kept by its content, and can't put a file anywhere else."""

from __future__ import annotations

import hashlib
import http.server
import io
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.build import build
from engine.tar.manifest import Manifest
from errors.build_config import ModelTarUnavailable
from tests.builder import tiny_model


class TarServer:
    """Serves ``content`` at ``url``, whole and with an ETag; ``num_bytes_sent`` counts what it sent."""

    def __init__(self) -> None:
        self.content = b""
        self.status = 200
        self.num_bytes_sent = 0
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(outer.status)
                self.send_header("ETag", f'"{hashlib.sha256(outer.content).hexdigest()}"')
                self.send_header("Content-Length", str(len(outer.content)))
                self.end_headers()
                outer.num_bytes_sent += self.wfile.write(outer.content)

            def log_message(self, *args: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://user:s3cr3t@127.0.0.1:{self._server.server_port}/model.tar?signature=s3cr3t"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[TarServer]:
    server = TarServer()
    server.content = tar_of(tiny_model.files())
    yield server
    server.close()


def tar_of(files: dict[str, bytes], *, mode: str = "w", extra: tarfile.TarInfo | None = None) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode=mode) as tar:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        if extra is not None:
            tar.addfile(extra)
    return output.getvalue()


def run(tmp_path: Path, url: str, **keys: Any) -> Manifest:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model_tar_url": url, **keys}))
    return build(tmp_path / "config.yaml", tmp_path / "engine.tar", report=lambda line: None)


def test_a_tar_gives_an_engine_that_names_its_content_and_not_its_credentials(
    tmp_path: Path, server: TarServer
) -> None:
    manifest = run(tmp_path, server.url)
    assert "model.safetensors" in manifest.files
    assert manifest.revision == f"sha256:{hashlib.sha256(server.content).hexdigest()}"
    assert b"s3cr3t" not in (tmp_path / "engine.tar").read_bytes()


@pytest.mark.parametrize("wrapping", ["folder", "gzip"])
def test_a_tar_of_a_folder_and_a_zipped_tar_are_understood(
    tmp_path: Path, server: TarServer, wrapping: str
) -> None:
    files = tiny_model.files()
    if wrapping == "folder":
        server.content = tar_of({f"Llama-tiny/{name}": content for name, content in files.items()})
    else:
        server.content = tar_of(files, mode="w:gz")
    assert run(tmp_path, server.url, model_id="acme/x").model_id == "acme/x"


def test_a_tar_is_fetched_once_as_long_as_the_server_says_it_is_the_same(
    tmp_path: Path, server: TarServer
) -> None:
    run(tmp_path, server.url)
    first = server.num_bytes_sent
    run(tmp_path, server.url)
    assert server.num_bytes_sent <= first + len(server.content)  # asked, its content not read on
    server.content = tar_of({**tiny_model.files(), "generation_config.json": b"{}"})
    assert run(tmp_path, server.url).files["generation_config.json"].size_bytes == 2


def member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    "extra",
    [
        member("../outside", tarfile.REGTYPE),
        member("/tmp/outside", tarfile.REGTYPE),
        member("link", tarfile.SYMTYPE, "/etc/passwd"),
        member("hard", tarfile.LNKTYPE, "config.json"),
        member("device", tarfile.CHRTYPE),
        member("config.json", tarfile.REGTYPE),
    ],
    ids=lambda info: info.name,
)
def test_a_tar_with_an_unsafe_member_is_refused_and_leaves_nothing(
    tmp_path: Path, cache: Path, server: TarServer, extra: tarfile.TarInfo
) -> None:
    server.content = tar_of(tiny_model.files(), extra=extra)
    with pytest.raises(ModelTarUnavailable, match="nothing was unpacked"):
        run(tmp_path, server.url)
    assert not (tmp_path / "outside").exists()
    assert [path for path in cache.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("content", [b"", b"<html>", tar_of(tiny_model.files())[:-15_000]])
def test_what_is_no_whole_tar_is_refused(tmp_path: Path, server: TarServer, content: bytes) -> None:
    server.content = content
    with pytest.raises(ModelTarUnavailable) as caught:
        run(tmp_path, server.url)
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("status", [403, 404])
def test_a_refusal_of_the_server_is_told_without_credentials(
    tmp_path: Path, server: TarServer, status: int
) -> None:
    server.status = status
    with pytest.raises(ModelTarUnavailable, match=f"HTTP {status}") as caught:
        run(tmp_path, server.url)
    assert "s3cr3t" not in str(caught.value)
