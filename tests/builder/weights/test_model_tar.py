"""A model's tar is unpacked as it arrives, kept by its content, and can't put a file anywhere else."""

import hashlib
import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.build import build
from engine.tar.manifest import Manifest
from errors.build_config import ModelTarUnavailable
from tests.builder import tiny_model
from tests.engine.tar_server import Fault, TarServer


@pytest.fixture
def server() -> Iterator[TarServer]:
    with TarServer(tar_of(tiny_model.files())) as server:
        yield server


def secret_url(server: TarServer) -> str:
    return server.url.replace("//", "//user:s3cr3t@") + "?signature=s3cr3t"


def tar_of(files: dict[str, bytes], *, mode: str = "w", extra: tarfile.TarInfo | None = None) -> bytes:
    output = io.BytesIO()
    with tarfile.open(fileobj=output, mode=mode) as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
        if extra is not None:
            tar.addfile(extra)
    return output.getvalue()


def run(tmp_path: Path, server: TarServer, **keys: Any) -> Manifest:
    server.etag = f'"{hashlib.sha256(server.content).hexdigest()}"'
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model_tar_url": secret_url(server), **keys}))
    return build(tmp_path / "config.yaml", tmp_path / "engine.tar", report=lambda line: None)


def test_a_tar_gives_an_engine_that_names_its_content_and_not_its_credentials(
    tmp_path: Path, server: TarServer
) -> None:
    manifest = run(tmp_path, server)
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
    assert run(tmp_path, server, model_id="acme/x").model_id == "acme/x"


def test_a_tar_is_fetched_once_as_long_as_the_server_says_it_is_the_same(
    tmp_path: Path, server: TarServer
) -> None:
    run(tmp_path, server)
    first = server.sent_bytes
    run(tmp_path, server)
    assert server.sent_bytes <= first + len(server.content)  # asked, its content not read on
    server.content = tar_of({**tiny_model.files(), "generation_config.json": b"{}"})
    assert run(tmp_path, server).files["generation_config.json"].size_bytes == 2


def member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    "extra",
    [member("../outside", tarfile.REGTYPE), member("link", tarfile.SYMTYPE, "/etc/passwd")],
    ids=lambda info: info.name,
)
def test_a_tar_with_an_unsafe_member_is_refused_and_leaves_nothing(
    tmp_path: Path, cache: Path, server: TarServer, extra: tarfile.TarInfo
) -> None:
    server.content = tar_of(tiny_model.files(), extra=extra)
    with pytest.raises(ModelTarUnavailable, match="nothing was unpacked"):
        run(tmp_path, server)
    assert not (tmp_path / "outside").exists()
    assert [path for path in cache.rglob("*") if path.is_file()] == []


def test_what_is_no_whole_tar_or_refused_is_told_without_credentials(
    tmp_path: Path, server: TarServer
) -> None:
    for content in (b"", b"<html>", tar_of(tiny_model.files())[:-15_000]):
        server.content = content
        with pytest.raises(ModelTarUnavailable) as caught:
            run(tmp_path, server)
        assert "s3cr3t" not in str(caught.value)
    server.fault = lambda request: Fault(status=403)
    with pytest.raises(ModelTarUnavailable, match="HTTP 403") as caught:
        run(tmp_path, server)
    assert "s3cr3t" not in str(caught.value)
