"""Custom resources against the definitions of those who made them.

Those are not committed here. COG_TRITON_CRDS names a folder of them, as YAML files: from the projects'
releases or of a cluster (`kubectl get crd -o yaml`). Without it these tests are skipped.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.deploy.conftest import KUBERNETES, Document, built, of_kind, with_components

pytestmark = pytest.mark.skipif(
    "COG_TRITON_CRDS" not in os.environ, reason="COG_TRITON_CRDS names no folder of definitions"
)


@pytest.fixture(scope="module")
def schemas() -> dict[tuple[str, str], Document]:
    found = {}
    for path in Path(os.environ["COG_TRITON_CRDS"]).rglob("*.y*ml"):
        for definition in _definitions(path):
            spec = definition["spec"]
            for version in spec["versions"]:
                key = f"{spec['group']}/{version['name']}", spec["names"]["kind"]
                found[key] = version["schema"]["openAPIV3Schema"]
    return found


def _definitions(path: Path) -> Iterator[Document]:
    for document in yaml.safe_load_all(path.read_text()):
        for each in document.get("items", [document]) if document else []:
            if each.get("kind") == "CustomResourceDefinition":
                yield each


def _strict(schema: object) -> object:
    """Return a schema as an API server takes it: no unknown fields, its own words for any value."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    strict = {key: _strict(value) for key, value in schema.items()}
    is_open = "additionalProperties" in schema or schema.get("x-kubernetes-preserve-unknown-fields")
    if isinstance(schema.get("properties"), dict) and schema.get("type") == "object" and not is_open:
        strict["additionalProperties"] = False
    return strict


def _check(document: Document, schemas: dict[tuple[str, str], Document]) -> None:
    schema = _strict(schemas[document["apiVersion"], document["kind"]])
    assert isinstance(schema, dict)
    schema["properties"]["metadata"] = {"type": "object"}
    jsonschema.Draft7Validator(schema).validate(document)


def test_custom_resources(schemas: dict[tuple[str, str], Document], tmp_path: Path) -> None:
    more = with_components(tmp_path / "more", "cpu", "autoscaling-keda", "pod-monitor")
    zero = with_components(tmp_path / "zero", "cpu", "scale-to-zero")
    kinds = ("ServingRuntime", "InferenceService", "ScaledObject", "PodMonitor")
    found = [of_kind((*built(KUBERNETES / "kserve"), *more), kind) for kind in kinds]
    found.append(of_kind(built(KUBERNETES / "leader-worker-set"), "LeaderWorkerSet"))
    for document in (*found, *(of_kind(zero, kind) for kind in ("ScaledObject", "InterceptorRoute"))):
        _check(document, schemas)
        with pytest.raises(jsonschema.ValidationError):
            _check({**document, "spec": {**document["spec"], "containerz": []}}, schemas)
