"""The options of `docker run` that make a container what `deploy/kubernetes/base` makes of a pod."""

from pathlib import Path
from typing import Any

import yaml

_DEPLOYMENT = Path(__file__).parents[2] / "deploy" / "kubernetes" / "base" / "deployment.yaml"


def pod() -> dict[str, Any]:
    spec: dict[str, Any] = yaml.safe_load(_DEPLOYMENT.read_text())["spec"]["template"]["spec"]
    return spec


def run_options() -> list[str]:
    spec = pod()
    (container,) = spec["containers"]
    user = spec["securityContext"]
    rights = container["securityContext"]
    assert rights["readOnlyRootFilesystem"]
    assert not rights["allowPrivilegeEscalation"]
    options = ["--read-only", "--security-opt", "no-new-privileges"]
    options += ["--user", f"{user['runAsUser']}:{user['runAsGroup']}"]
    options += [word for right in rights["capabilities"]["drop"] for word in ("--cap-drop", right)]
    for mount in container["volumeMounts"]:
        options += ["--tmpfs", f"{mount['mountPath']}:mode=1777,exec"]
    # Every pod has it; Cog then writes a file of its own, which it can't here.
    return [*options, "--env", "KUBERNETES_SERVICE_HOST=10.0.0.1", "--env", "COG_TRITON_CACHE=/cache"]


def probe(kind: str) -> list[str]:
    """Return the command of ``startupProbe``, ``readinessProbe`` or ``livenessProbe``."""
    (container,) = pod()["containers"]
    command: list[str] = container[kind]["exec"]["command"]
    return command
