"""What `deploy/kubernetes` builds is valid for Kubernetes, and means what the runner needs."""

import re
import shutil
from pathlib import Path

import kubernetes_validate
import pytest
import yaml

from engine.machine.root import SOURCE_ROOT
from runner.observability.metrics import ENGINE_METRICS
from runner.settings.cog_settings import COG_VARIABLES
from runner.settings.settings import VARIABLES, load_settings
from tests import fast
from tests.deploy.conftest import (
    COMPONENTS,
    KUBERNETES,
    OVERLAYS,
    Document,
    built,
    of_kind,
    runner_container,
    with_components,
)

VERSIONS = ("1.29", "1.32", "1.37")
"""Versions of Kubernetes: the oldest, one between and the newest that the manifests are checked for."""
OWN_END_S = 5.0
"""What the runner's own end takes at most, once its requests have ended: docs/reliability.md."""
IMAGES: dict[str, tuple[str, str | None, str]] = {
    "cpu": ("cpu", None, ""),
    **{f"sm-{sm}": (sm, "1", sm) for sm in ("80", "86", "90")},
    "vllm-4-gpus": ("vllm-90", "4", "90"),
}
"""End of the image's name, GPUs and their SM by overlay."""
OWN = ("apps/v1", "v1", "policy/v1", "autoscaling/v2", "networking.k8s.io/v1")
"""API groups of Kubernetes itself; others are told by their custom resource definitions."""


def cpu() -> tuple[Document, ...]:
    return built(KUBERNETES / "overlays" / "cpu")


def test_there_is_one_overlay_per_image() -> None:
    assert list(IMAGES) == OVERLAYS


@pytest.mark.parametrize("version", fast.few(VERSIONS))
@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_overlay_fits_kubernetes_own_schemas(overlay: str, version: str) -> None:
    documents = built(KUBERNETES / "overlays" / overlay)
    kinds = {each["kind"] for each in documents}
    assert kinds >= {"Deployment", "Service", "ConfigMap", "PodDisruptionBudget"}
    for document in documents:
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("component", fast.few(sorted(set(COMPONENTS) - {"gpu"})))
def test_a_component_fits_every_overlay(tmp_path: Path, component: str) -> None:
    for overlay in ("cpu", "sm-90"):
        for document in with_components(tmp_path / overlay, overlay, component):
            if document["apiVersion"] in OWN:
                kubernetes_validate.validate(document, VERSIONS[-1], strict=True)


def test_what_was_compiled_elsewhere_is_copied_by_the_runners_image_without_rights(tmp_path: Path) -> None:
    documents = with_components(tmp_path, "sm-90", "engine-cache")
    runner = runner_container(documents)
    (copy,) = of_kind(documents, "Deployment")["spec"]["template"]["spec"]["initContainers"]
    assert copy["image"] == runner["image"]
    assert copy["securityContext"] == runner["securityContext"]
    assert [mount for mount in runner["volumeMounts"] if mount["name"] == "cache"] == copy["volumeMounts"]


def test_the_documented_kustomization_takes_another_image_and_other_nodes(tmp_path: Path) -> None:
    guide = (SOURCE_ROOT / "docs" / "kubernetes.md").read_text()
    (block,) = (each for each in re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL) if "vllm-89" in each)
    copy = tmp_path / "kubernetes"
    shutil.copytree(KUBERNETES, copy)
    (copy / "mine").mkdir()
    (copy / "mine" / "kustomization.yaml").write_text(block)
    documents = built(copy / "mine")
    assert runner_container(documents)["image"] == "registry.example.com/cog-triton-runner-vllm-89:latest"
    assert of_kind(documents, "Deployment")["spec"]["template"]["spec"]["nodeSelector"] == {
        "nvidia.com/gpu.compute.major": "8",
        "nvidia.com/gpu.compute.minor": "9",
    }


def test_the_schemas_refuse_what_is_wrong() -> None:
    deployment = of_kind(cpu(), "Deployment")
    wrong = {**deployment, "spec": {**deployment["spec"], "replica": 1}}
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, VERSIONS[-1], strict=True)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_a_pod_runs_without_rights_writes_to_volumes_alone_and_is_found(overlay: str) -> None:
    documents = built(KUBERNETES / "overlays" / overlay)
    pod = of_kind(documents, "Deployment")["spec"]["template"]["spec"]
    container = runner_container(documents)
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not pod["automountServiceAccountToken"]
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts.values()) == {"/cache", "/tmp", "/home/cog", "/dev/shm"}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert set(volumes) == set(mounts)
    assert volumes["shared-memory"]["emptyDir"]["medium"] == "Memory"
    labels = of_kind(documents, "Deployment")["spec"]["template"]["metadata"]["labels"].items()
    assert of_kind(documents, "Service")["spec"]["selector"].items() <= labels
    assert of_kind(documents, "PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items() <= labels
    monitor = yaml.safe_load((KUBERNETES / "components" / "pod-monitor" / "pod-monitor.yaml").read_text())
    assert monitor["spec"]["selector"]["matchLabels"].items() <= labels
    ports = {port["name"] for port in container["ports"]}
    assert {port["targetPort"] for port in of_kind(documents, "Service")["spec"]["ports"]} <= ports
    assert {each["port"] for each in monitor["spec"]["podMetricsEndpoints"]} <= ports


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_an_image_meets_its_gpu(overlay: str) -> None:
    image, gpus, sm = IMAGES[overlay]
    container = runner_container(documents := built(KUBERNETES / "overlays" / overlay))
    assert container["image"].endswith(f"/cog-triton-runner-{image}:latest")
    assert container["resources"]["limits"].get("nvidia.com/gpu") == gpus
    labels = of_kind(documents, "Deployment")["spec"]["template"]["spec"].get("nodeSelector", {})
    assert "".join(labels[f"nvidia.com/gpu.compute.{part}"] for part in ("major", "minor") if labels) == sm


def test_settings_are_the_runners() -> None:
    known = set(VARIABLES) | set(COG_VARIABLES)
    settings = of_kind(cpu(), "ConfigMap")["data"]
    runtime = of_kind(built(KUBERNETES / "kserve"), "ServingRuntime")
    (container,) = runtime["spec"]["containers"]
    assert set(settings) <= known
    assert {variable["name"] for variable in container["env"]} <= known


def test_what_is_scaled_on_is_a_metric_of_the_engine_server(tmp_path: Path) -> None:
    paths = [path for name in ("components", "kserve") for path in (KUBERNETES / name).rglob("*.yaml")]
    named = set(re.findall(r"cog_triton_\w+_requests\b", "".join(path.read_text() for path in paths)))
    assert named == {"cog_triton_engine_queued_requests", "cog_triton_slot_running_requests"}
    assert named <= {family.name for family in ENGINE_METRICS if family.kind == "gauge"}
    adapter = KUBERNETES / "components" / "autoscaling-hpa" / "prometheus-adapter-values.yaml"
    query = yaml.safe_load(adapter.read_text())["rules"]["custom"][0]["seriesQuery"]
    (pattern,) = re.findall(r'__name__=~"([^"]+)"', query)
    scaler = of_kind(with_components(tmp_path, "cpu", "autoscaling-hpa"), "HorizontalPodAutoscaler")
    for each in scaler["spec"]["metrics"]:
        assert re.fullmatch(pattern, each["pods"]["metric"]["name"])


def test_the_first_request_to_no_pod_waits_for_a_ready_one(tmp_path: Path) -> None:
    """KEDA's interceptor waits for an endpoint of the Service: for a pod that passes its readiness probe."""
    documents = with_components(tmp_path, "cpu", "scale-to-zero")
    route, scaler = (of_kind(documents, kind)["spec"] for kind in ("InterceptorRoute", "ScaledObject"))
    assert scaler["minReplicaCount"] == 0
    assert scaler["scaleTargetRef"]["name"] == of_kind(documents, "Deployment")["metadata"]["name"]
    (trigger,) = scaler["triggers"]
    assert (
        trigger["metadata"]["interceptorRoute"] == of_kind(documents, "InterceptorRoute")["metadata"]["name"]
    )
    service = of_kind(documents, "Service")
    assert route["target"]["service"] == service["metadata"]["name"]
    assert route["target"]["portName"] in {port["name"] for port in service["spec"]["ports"]}
    assert "ready" in runner_container(documents)["readinessProbe"]["exec"]["command"]


def test_endings_have_time() -> None:
    pod = of_kind(cpu(), "Deployment")["spec"]["template"]["spec"]
    grace_s = of_kind(cpu(), "ConfigMap")["data"]["STOP_GRACE_PERIOD"]
    probe = pod["containers"][0]["readinessProbe"]
    unready_s = probe["periodSeconds"] * probe["failureThreshold"] + probe["timeoutSeconds"]
    assert pause_s(pod["containers"]) >= unready_s
    assert pod["terminationGracePeriodSeconds"] >= pause_s(pod["containers"]) + float(grace_s) + OWN_END_S
    kserve = built(KUBERNETES / "kserve")
    containers = of_kind(kserve, "ServingRuntime")["spec"]["containers"]
    (grace_s,) = (each["value"] for each in containers[0]["env"] if each["name"] == "STOP_GRACE_PERIOD")
    predictor = of_kind(kserve, "InferenceService")["spec"]["predictor"]
    assert predictor["terminationGracePeriodSeconds"] >= pause_s(containers) + float(grace_s) + OWN_END_S


def pause_s(containers: list[Document]) -> float:
    (container,) = containers
    return float(container["lifecycle"]["preStop"]["exec"]["command"][1])


def test_every_api_of_the_runner_has_its_port(tmp_path: Path) -> None:
    documents = cpu()
    ports = {port["name"]: port["containerPort"] for port in runner_container(documents)["ports"]}
    defaults = load_settings({"HOME": str(tmp_path)})
    assert ports == {
        "cog": 5000,
        "triton-http": defaults.triton_http_port,
        "triton-grpc": defaults.triton_grpc_port,
        "metrics": defaults.triton_metrics_port,
        "openai": defaults.openai_port,
    }
    served = {port["name"]: port["port"] for port in of_kind(documents, "Service")["spec"]["ports"]}
    assert served == {name: port for name, port in ports.items() if name != "metrics"}


def test_a_start_may_take_what_triton_may_take() -> None:
    documents = cpu()
    probe = runner_container(documents)["startupProbe"]
    settings = of_kind(documents, "ConfigMap")["data"]
    start_s = probe["periodSeconds"] * probe["failureThreshold"]
    assert start_s > float(settings["TRITON_START_TIMEOUT"])
    assert of_kind(documents, "Deployment")["spec"]["progressDeadlineSeconds"] > start_s


def test_kserves_container_is_kubernetes_container_and_its_service_names_its_runtime() -> None:
    documents = built(KUBERNETES / "kserve")
    runtime = of_kind(documents, "ServingRuntime")
    spec = {name: runtime["spec"][name] for name in ("containers", "volumes")}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": spec}
    kubernetes_validate.validate(pod, VERSIONS[-1], strict=True)
    assert [each["name"] for each in spec["containers"]] == ["kserve-container"]
    model = of_kind(documents, "InferenceService")["spec"]["predictor"]["model"]
    assert model["runtime"] == runtime["metadata"]["name"]
    formats = [(each["name"], each["version"]) for each in runtime["spec"]["supportedModelFormats"]]
    assert (model["modelFormat"]["name"], model["modelFormat"]["version"]) in formats
