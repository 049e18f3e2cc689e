"""Create an image with a model's settings from a runner image, in the registry."""

import argparse
import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import yaml

from cli.registry.client import Registry
from cli.registry.image_reference import ImageReference, parse_reference
from engine.redact import redact_text
from errors.coded_error import CodedError
from errors.image import BaseElsewhere, ImageUnsuitable
from runner.settings.server_config import CONFIG_VARIABLE, read_server_config
from runner.settings.settings import load_settings

_CONFIG_PATH = "src/config.yaml"
_KIND_LABEL = "cog-triton.kind"
_LAYER_TYPES = {
    "application/vnd.oci.image.manifest.v1+json": "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.docker.distribution.manifest.v2+json": (
        "application/vnd.docker.image.rootfs.diff.tar.gzip"
    ),
}
_OPTIONS = {"base_model": "--base", "staging_dest": "--dest"}
_VARIABLES = {
    "weights": "COG_WEIGHTS",
    "system_prompt": "SYSTEM_PROMPT",
    "prompt_template": "PROMPT_TEMPLATE",
}
"""Key of ``instantiate:`` -> the runner's variable that it sets in the image."""


@dataclass(frozen=True)
class Instance:
    """The additions of the new image to its base: other environment variables and one more small layer.

    The layer is /src/config.yaml, the arguments of the server. The registry mounts the layers of the base.
    """

    environment: Mapping[str, str]
    server: Mapping[str, Any]

    def layer(self) -> bytes:
        """Return an uncompressed tar of /src/config.yaml, the same for the same arguments."""
        text = yaml.safe_dump({"instantiate": {"server": dict(self.server)}}, sort_keys=True).encode()
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
            entry = tarfile.TarInfo(_CONFIG_PATH)
            entry.size, entry.mode, entry.mtime = len(text), 0o644, 1
            tar.addfile(entry, io.BytesIO(text))
        return buffer.getvalue()


def run(options: argparse.Namespace) -> int:
    surroundings = {CONFIG_VARIABLE: options.config, "HOME": os.environ.get("HOME", "/")}
    with _named(options.config):
        section = read_server_config(surroundings)
        instance = _instance(section, surroundings)
    base = _reference(options, "base_model", options.base, section)
    destination = _reference(options, "staging_dest", options.dest, section)
    if base.host != destination.host:
        raise BaseElsewhere(base=base, destination=destination, host=destination.host)
    with Registry(destination, (base.path, destination.path)) as registry:
        digest = instantiate(registry, base, destination, instance)
    for name, value in instance.environment.items():
        print(f"{name}={redact_text(value)}")
    print(f"Pushed: {destination}@{digest}")
    return 0


@contextmanager
def _named(config: str) -> Iterator[None]:
    """Make errors in the file ``config`` name it."""
    try:
        yield
    except CodedError as exc:
        subject, _, rest = exc.sentence.partition(" ")
        is_file = subject in (CONFIG_VARIABLE, PurePath(config).name)
        name = "config" if subject == CONFIG_VARIABLE else config  # Its value is the file's name.
        sentence = f"{name} {rest}" if is_file else f"{config}: {exc.sentence}"
        raise type(exc).restore(sentence, exc.facts) from exc


def _reference(
    options: argparse.Namespace, key: str, given: str | None, section: Mapping[str, Any]
) -> ImageReference:
    """Return the image that the option for ``key`` names, else the section's. Raises E1401."""
    if given is not None:
        return parse_reference(given, _OPTIONS[key])
    with _named(options.config):
        return parse_reference(section.get(key), f"{key} (or {_OPTIONS[key]})")


def _instance(section: Mapping[str, Any], surroundings: Mapping[str, str]) -> Instance:
    """Return the settings of the config, checked by the runner's own parser. Raises E1006."""
    server = {model: {"args": arguments} for model, arguments in load_settings(surroundings).server.items()}
    environment = {name: section[key] for key, name in _VARIABLES.items() if section.get(key)}
    return Instance(environment, server)


def instantiate(
    registry: Registry, base: ImageReference, destination: ImageReference, instance: Instance
) -> str:
    """Write the image ``destination`` and return its digest. Raises 14xx and E2501."""
    manifest = _image_manifest(registry, base)
    config = registry.document(base.path, manifest["config"]["digest"])
    _check_is_runner(base, config)
    tar = instance.layer()
    compressed = gzip.compress(tar, mtime=0)
    for each in manifest["layers"]:
        registry.mount(each["digest"], base.path, destination.path)
    layer = {
        "mediaType": _LAYER_TYPES[manifest["mediaType"]],
        "digest": registry.upload(destination.path, compressed),
        "size": len(compressed),
    }
    content = json.dumps(_with_instance(config, instance, tar), indent=2, sort_keys=True).encode()
    manifest["config"] |= {"digest": registry.upload(destination.path, content), "size": len(content)}
    manifest["layers"].append(layer)
    return registry.put_manifest(destination, manifest)


def _image_manifest(registry: Registry, base: ImageReference) -> dict[str, Any]:
    """Return the manifest of the base image; of several, the one for linux/amd64."""
    manifest = registry.manifest(base)
    if "manifests" in manifest:
        digests = [
            str(each["digest"])
            for each in manifest["manifests"]
            if (each.get("platform") or {}).get("os") == "linux"
            and (each.get("platform") or {}).get("architecture") == "amd64"
        ]
        if not digests:
            raise ImageUnsuitable(reference=base, reason="is not there for linux/amd64")
        manifest = registry.manifest(ImageReference(base.host, base.path, base.tag, digests[0]))
    if manifest["mediaType"] not in _LAYER_TYPES or not manifest.get("layers"):
        raise ImageUnsuitable(reference=base, reason=f"is no image but {manifest['mediaType']}")
    return manifest


def _check_is_runner(base: ImageReference, config: Mapping[str, Any]) -> None:
    labels = (config.get("config") or {}).get("Labels") or {}
    if labels.get(_KIND_LABEL) != "runner":
        raise ImageUnsuitable(reference=base, reason=f"has no label {_KIND_LABEL}=runner")


def _with_instance(config: dict[str, Any], instance: Instance, tar: bytes) -> dict[str, Any]:
    settings = config["config"]
    environment = dict(entry.partition("=")[::2] for entry in settings.get("Env") or ())
    environment |= instance.environment
    history = [*config.get("history", ()), {"created_by": "cog-triton instantiate"}]
    diff_ids = [*config["rootfs"]["diff_ids"], f"sha256:{hashlib.sha256(tar).hexdigest()}"]
    return {
        **config,
        "config": {**settings, "Env": [f"{name}={value}" for name, value in environment.items()]},
        "rootfs": {**config["rootfs"], "diff_ids": diff_ids},
        "history": history,
    }
