"""Kustomizations as `kubectl kustomize` builds them, and what they are made of."""

import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

Document = dict[str, Any]

KUBERNETES = Path(__file__).parents[2] / "deploy" / "kubernetes"
OVERLAYS = sorted(path.parent.name for path in KUBERNETES.glob("overlays/*/kustomization.yaml"))
COMPONENTS = sorted(path.parent.name for path in KUBERNETES.glob("components/*/kustomization.yaml"))


@cache
def kustomize() -> tuple[str, ...]:
    """Return the command that builds a kustomization; a test that needs it is skipped where there is none."""
    for command in (("kustomize", "build"), ("kubectl", "kustomize")):
        if shutil.which(command[0]):
            return command
    pytest.skip("neither kustomize nor kubectl is here")


@cache
def built(folder: Path) -> tuple[Document, ...]:
    run = subprocess.run([*kustomize(), str(folder)], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    return tuple(yaml.safe_load_all(run.stdout))


def with_components(folder: Path, overlay: str, *components: str) -> tuple[Document, ...]:
    """Return an overlay with more components, as somebody's own kustomization would have it."""
    copy = folder / "kubernetes"
    shutil.copytree(KUBERNETES, copy)
    mine = copy / "mine"
    mine.mkdir()
    kustomization = {
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": [f"../overlays/{overlay}"],
        "components": [f"../components/{name}" for name in components],
    }
    (mine / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return built(mine)


def of_kind(documents: tuple[Document, ...], kind: str) -> Document:
    (document,) = (each for each in documents if each["kind"] == kind)
    return document


def runner_container(documents: tuple[Document, ...]) -> Document:
    (container,) = of_kind(documents, "Deployment")["spec"]["template"]["spec"]["containers"]
    assert isinstance(container, dict)
    return container
