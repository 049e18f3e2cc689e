"""One engine over several machines in Kubernetes: a LeaderWorkerSet."""

from typing import Any

import jsonschema
import kubernetes_validate
import pytest

from runner.settings.settings import VARIABLES
from tests.deploy.conftest import KUBERNETES, Document, built, of_kind
from tests.deploy.test_manifests import OWN, OWN_END_S, VERSIONS, pause_s

_TEMPLATE = {"type": "object"}
"""A pod template: Kubernetes' own schema tells more."""


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": False,
    }


SCHEMA = _object(
    ["apiVersion", "kind", "metadata", "spec"],
    apiVersion={"const": "leaderworkerset.x-k8s.io/v1"},
    kind={"const": "LeaderWorkerSet"},
    metadata={"type": "object"},
    spec=_object(
        ["leaderWorkerTemplate"],
        replicas={"type": "integer"},
        startupPolicy={"enum": ["LeaderCreated", "LeaderReady"]},
        leaderWorkerTemplate=_object(
            ["workerTemplate"],
            size={"type": "integer"},
            restartPolicy={
                "enum": ["Default", "RecreateGroupOnPodRestart", "RecreateGroupAfterStart", "None"]
            },
            leaderTemplate=_TEMPLATE,
            workerTemplate=_TEMPLATE,
        ),
        networkConfig=_object(["subdomainPolicy"], subdomainPolicy={"enum": ["Shared", "UniquePerReplica"]}),
    ),
)
"""The fields of LeaderWorkerSet v1 that an operator is likely to set; ``test_custom_resources`` knows all."""


def documents() -> tuple[Document, ...]:
    return built(KUBERNETES / "leader-worker-set")


def template() -> Document:
    found: Document = of_kind(documents(), "LeaderWorkerSet")["spec"]["leaderWorkerTemplate"][
        "workerTemplate"
    ]
    return found


def test_it_fits_its_schema_and_its_pods_fit_kubernetes() -> None:
    found = of_kind(documents(), "LeaderWorkerSet")
    jsonschema.validate(found, SCHEMA)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**found, "spec": {**found["spec"], "size": 2}}, SCHEMA)
    pod = {"apiVersion": "v1", "kind": "Pod", **template()}
    pod["metadata"] = {**pod["metadata"], "name": "x"}
    for version in VERSIONS:
        kubernetes_validate.validate(pod, version, strict=True)
        for each in documents():
            if each["apiVersion"] in OWN:
                kubernetes_validate.validate(each, version, strict=True)


def test_each_node_has_its_rank_and_the_head_alone_is_served() -> None:
    (runner,) = template()["spec"]["containers"]
    assert runner["image"] == "registry.example.com/cog-triton-runner-vllm-90:latest"
    variables = {each["name"]: each["value"] for each in runner["env"]}
    assert variables == {
        "NODES": "$(LWS_GROUP_SIZE)",
        "NODE_RANK": "$(LWS_WORKER_INDEX)",
        "HEAD_ADDRESS": "$(LWS_LEADER_ADDRESS)",
    }
    assert variables.keys() <= VARIABLES.keys()
    settings = of_kind(documents(), "ConfigMap")
    assert runner["envFrom"][0]["configMapRef"]["name"] == settings["metadata"]["name"]
    selector = of_kind(documents(), "Service")["spec"]["selector"]
    assert selector == {
        **template()["metadata"]["labels"],
        "leaderworkerset.sigs.k8s.io/worker-index": "0",
    }


def test_other_pods_reach_the_ports_of_the_apis_alone() -> None:
    policy = of_kind(documents(), "NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"] == template()["metadata"]["labels"]
    of_nodes, of_others = policy["ingress"]
    assert of_nodes == {"from": [{"podSelector": policy["podSelector"]}]}
    (runner,) = template()["spec"]["containers"]
    assert {each["port"] for each in of_others["ports"]} <= {each["name"] for each in runner["ports"]}


def test_its_pods_are_those_of_the_other_manifests() -> None:
    spec = template()["spec"]
    deployment = built(KUBERNETES / "overlays" / "vllm-4-gpus")
    other = of_kind(deployment, "Deployment")["spec"]["template"]["spec"]
    same = ("securityContext", "tolerations", "nodeSelector", "terminationGracePeriodSeconds")
    assert {name: spec[name] for name in same} == {name: other[name] for name in same}
    (runner,), (others,) = spec["containers"], other["containers"]
    parts = (
        "startupProbe",
        "readinessProbe",
        "livenessProbe",
        "lifecycle",
        "securityContext",
        "volumeMounts",
    )
    assert {name: runner[name] for name in parts} == {name: others[name] for name in parts}
    grace_s = float(of_kind(documents(), "ConfigMap")["data"]["STOP_GRACE_PERIOD"])
    assert spec["terminationGracePeriodSeconds"] >= pause_s(spec["containers"]) + grace_s + OWN_END_S
