"""Assemble an image from finished layers: an OCI image layout that is also a Docker archive.

    OUT/oci-layout, OUT/index.json     what skopeo and every OCI tool reads
    OUT/manifest.json                  what `docker load` and `podman load` read of a tar of it
    OUT/blobs/sha256/...               configuration and manifest; layers are links to where they are

Standard library only.
"""

import argparse
import hashlib
import json
import sys
from pathlib import Path
from typing import Any

_MEDIA_TYPE = "application/vnd.oci.image"
_TAG_LENGTH = 32


class Layout:
    """An OCI image layout in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "blobs" / "sha256").mkdir(parents=True)
        self.write("oci-layout", {"imageLayoutVersion": "1.0.0"})

    def blob(self, document: dict[str, Any], kind: str) -> dict[str, Any]:
        """Store a document; return its descriptor."""
        text = json.dumps(document, indent=2, sort_keys=True).encode()
        digest = hashlib.sha256(text).hexdigest()
        self._path(digest).write_bytes(text)
        return {"mediaType": f"{_MEDIA_TYPE}.{kind}", "digest": f"sha256:{digest}", "size": len(text)}

    def layer(self, layer: Path, facts: dict[str, Any]) -> dict[str, Any]:
        """Link to a layer's file; return its descriptor."""
        self._path(facts["digest"].partition(":")[2]).symlink_to(layer / "layer.tar.gz")
        kind = "layer.v1.tar+gzip"
        return {"mediaType": f"{_MEDIA_TYPE}.{kind}", "digest": facts["digest"], "size": facts["size"]}

    def _path(self, digest: str) -> Path:
        return self.folder / "blobs" / "sha256" / digest

    def write(self, name: str, document: object) -> None:
        (self.folder / name).write_text(json.dumps(document, indent=2, sort_keys=True) + "\n")


def assemble(layout: Layout, name: str, created: str, config: dict[str, Any], layers: list[Path]) -> str:
    """Write the image; return ``name:tag``. The tag is the beginning of the configuration's digest.

    The configuration names every layer by its digest, so the tag identifies the complete content.
    """
    facts = [json.loads((layer / "layer.json").read_text()) for layer in layers]
    history = [{"created": created, "created_by": f"cog-triton: {each['name']}"} for each in facts]
    image_config = layout.blob(
        {
            "architecture": "amd64",
            "os": "linux",
            "created": created,
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": [each["diff_id"] for each in facts]},
            "history": history,
        },
        "config.v1+json",
    )
    descriptors = [layout.layer(layer, each) for layer, each in zip(layers, facts, strict=True)]
    manifest = layout.blob(
        {
            "schemaVersion": 2,
            "mediaType": f"{_MEDIA_TYPE}.manifest.v1+json",
            "config": image_config,
            "layers": descriptors,
        },
        "manifest.v1+json",
    )
    tag = image_config["digest"].partition(":")[2][:_TAG_LENGTH]
    annotations = {
        "io.containerd.image.name": f"docker.io/library/{name}:{tag}",
        "org.opencontainers.image.ref.name": tag,
    }
    manifests = [{**manifest, "annotations": annotations}]
    index = {"schemaVersion": 2, "mediaType": f"{_MEDIA_TYPE}.index.v1+json", "manifests": manifests}
    layout.write("index.json", index)
    blobs = ["blobs/" + each["digest"].replace(":", "/") for each in (image_config, *descriptors)]
    reference = f"{name}:{tag}"
    layout.write("manifest.json", [{"Config": blobs[0], "RepoTags": [reference], "Layers": blobs[1:]}])
    return reference


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--name", required=True)
    parser.add_argument("--created", required=True, help="time in RFC 3339")
    parser.add_argument("--config", type=Path, required=True, help="JSON: what containers get (Env, ...)")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("layers", type=Path, nargs="+")
    options = parser.parse_args()
    config = json.loads(options.config.read_text())
    print(assemble(Layout(options.out), options.name, options.created, config, options.layers))
    return 0


if __name__ == "__main__":
    sys.exit(main())
