"""The layout is what OCI tools and Docker read, and its tag is its content's."""

import hashlib
import json
from pathlib import Path
from typing import Any

from nix.build.image import Layout, assemble


def _layer(folder: Path, name: str) -> Path:
    folder.mkdir()
    content = name.encode()
    (folder / "layer.tar.gz").write_bytes(content)
    digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
    facts = {"name": name, "digest": digest, "size": len(content), "diff_id": digest}
    (folder / "layer.json").write_text(json.dumps(facts))
    return folder


def _image(folder: Path, *names: str, **config: Any) -> tuple[Path, str]:
    folder.mkdir()
    layers = [_layer(folder / f"layer-{name}", name) for name in names]
    reference = assemble(Layout(folder / "image"), "test", "2026-01-02T03:04:05Z", config, layers)
    return folder / "image", reference


def _blob(image: Path, digest: str) -> bytes:
    return (image / "blobs" / digest.replace(":", "/")).read_bytes()


def test_every_descriptor_leads_to_a_blob_of_that_digest_and_size(tmp_path: Path) -> None:
    image, _ = _image(tmp_path / "a", "base", "code", Env=["A=1"])
    index = json.loads((image / "index.json").read_text())
    manifest = json.loads(_blob(image, index["manifests"][0]["digest"]))
    for descriptor in [index["manifests"][0], manifest["config"], *manifest["layers"]]:
        content = _blob(image, descriptor["digest"])
        assert descriptor["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
        assert descriptor["size"] == len(content)
    assert [_blob(image, each["digest"]) for each in manifest["layers"]] == [b"base", b"code"]


def test_docker_reads_the_same_image(tmp_path: Path) -> None:
    image, reference = _image(tmp_path / "a", "base", "code", Env=["A=1"])
    (entry,) = json.loads((image / "manifest.json").read_text())
    assert entry["RepoTags"] == [reference]
    config = json.loads((image / entry["Config"]).read_text())
    assert config["config"] == {"Env": ["A=1"]}
    assert [(image / each).read_bytes() for each in entry["Layers"]] == [b"base", b"code"]
    assert len(config["history"]) == len(config["rootfs"]["diff_ids"]) == 2


def test_the_tag_changes_with_layers_and_with_settings_and_with_nothing_else(tmp_path: Path) -> None:
    same = {_image(tmp_path / name, "base", "code", Env=["A=1"])[1] for name in ("a", "b")}
    assert len(same) == 1
    others = {
        _image(tmp_path / "c", "base", "other", Env=["A=1"])[1],
        _image(tmp_path / "d", "code", "base", Env=["A=1"])[1],
        _image(tmp_path / "e", "base", "code", Env=["A=2"])[1],
    }
    assert len(others | same) == 4
