"""``./result``: loads, pushes, saves, shows and streams one and the same image."""

import hashlib
import json
import subprocess
from pathlib import Path

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.images.container import docker
from tests.images.registry import RegistryServer
from tests.images.result import Result

pytestmark = pytest.mark.servers


@pytest.fixture(scope="module")
def saved(runner: Result, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "image.tar"
    runner.run("save", str(path))
    return path


def test_load_tells_name_and_content(runner: Result) -> None:
    assert runner.run("load") == f"Loaded image: {runner.reference}\n"
    name, _, tag = runner.reference.partition(":")
    assert name == "cog-triton-runner-cpu"
    identity = docker("image", "inspect", "--format", "{{.Id}}", runner.reference).strip()
    assert identity == runner.facts["id"]
    assert identity.startswith(f"sha256:{tag}")


def test_podman_takes_it_too(runner: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = tmp_path / "storage.conf"
    storage.write_text(
        f'[storage]\ndriver = "overlay"\ngraphroot = "{tmp_path}/images"\nrunroot = "{tmp_path}/run"\n'
    )
    monkeypatch.setenv("CONTAINERS_STORAGE_CONF", str(storage))
    monkeypatch.setenv("CONTAINER_ENGINE", "podman")
    assert runner.run("load") == f"Loaded image: {runner.reference}\n"
    command = ["podman", "image", "exists", runner.reference]
    assert subprocess.run(command, check=False).returncode == 0


def test_labels_tell_what_it_is(runner: Result) -> None:
    labels = json.loads(docker("image", "inspect", "--format", "{{json .Config.Labels}}", runner.reference))
    assert labels["org.opencontainers.image.title"] == "cog-triton-runner-cpu"
    assert labels["cog-triton.kind"] == "runner"
    assert labels["run.cog.version"] == "0.23.1"
    assert "Input" in json.loads(labels["run.cog.openapi_schema"])["components"]["schemas"]


def test_what_it_holds_is_told_as_cyclonedx(runner: Result) -> None:
    text = runner.run("sbom")
    assert JsonStrictValidator(SchemaVersion.V1_6).validate_str(text) is None
    names = {each["name"] for each in json.loads(text)["components"]}
    # Of the system nothing: the stand-in's packages tell no version.
    assert {"cog", "nvidia-pytriton", "torch", "transformers"} <= names


def test_what_is_streamed_is_what_is_saved(runner: Result, saved: Path) -> None:
    digest = hashlib.sha256()
    with subprocess.Popen([runner.path], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        while block := process.stdout.read(1 << 20):
            digest.update(block)
    assert digest.hexdigest() == hashlib.sha256(saved.read_bytes()).hexdigest()


@pytest.mark.parametrize("kind", ["docker-archive", "oci-archive"])
def test_the_saved_file_is_an_archive_of_both_kinds(runner: Result, saved: Path, kind: str) -> None:
    command = ["skopeo", "--insecure-policy", "inspect", "--config", f"{kind}:{saved}"]
    config = json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    # OCI's form, in which skopeo tells it, has no health check.
    assert config["config"] == {k: v for k, v in runner.facts["config"].items() if k != "Healthcheck"}


def test_push_sends_a_layer_once(runner: Result, builder: Result, registry: RegistryServer) -> None:
    target = f"{registry.host}/team/runner:1"
    assert runner.facts["digest"] in runner.run("push", target, "--dest-tls-verify=false")
    before = registry.blobs()
    assert {layer["digest"] for layer in runner.facts["layers"]} <= set(before)
    runner.run("push", f"{registry.host}/team/runner:2", "--dest-tls-verify=false")
    assert registry.blobs() == before
    shared = [a for a, b in zip(runner.facts["layers"], builder.facts["layers"], strict=True) if a == b]
    assert [layer["name"].partition(": ")[2] for layer in shared] == [
        "base",
        "engine environment",
        "serving environment",
    ]


def test_push_tells_the_digest_that_the_registry_has(runner: Result, registry: RegistryServer) -> None:
    """It is another one with another manifest, as of zstd layers, or here of Docker's kind."""
    target = f"{registry.host}/team/runner:other"
    told = runner.run("push", target, "--dest-tls-verify=false", "--format", "v2s2").split("@")[-1].strip()
    command = ["skopeo", "inspect", "--tls-verify=false", "--format", "{{.Digest}}", f"docker://{target}"]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip() == told
    assert told != runner.facts["digest"]


def test_a_wrong_command_line_says_what_there_is(runner: Result) -> None:
    run = subprocess.run([runner.path, "lode"], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "push REF" in run.stderr
