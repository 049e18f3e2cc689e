"""The GitHub workflows and compose files name what exists. Nothing here runs them: docs/images.md says so."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from engine.machine.root import SOURCE_ROOT

WORKFLOWS = sorted((SOURCE_ROOT / ".github" / "workflows").glob("*.yml"))
DOCKER = SOURCE_ROOT / "deploy" / "docker"


def _jobs(path: Path) -> dict[str, dict[str, Any]]:
    return yaml.safe_load(path.read_text())["jobs"]


def _commands(job: dict[str, Any]) -> str:
    return "\n".join(step.get("run", "") for step in job["steps"])


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_is_pinned_may_do_what_it_is_for_and_names_what_exists(path: Path) -> None:
    used = re.findall(r"uses: (.*)", path.read_text())
    assert used
    assert [line for line in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", line)] == []
    assert yaml.safe_load(path.read_text())["permissions"] == {"contents": "read"}
    for job in _jobs(path).values():
        assert job["timeout-minutes"] <= 240
        if job.get("permissions", {}).get("contents") == "write":
            assert "gh release create" in str(job["steps"])
    commands = "\n".join(map(_commands, _jobs(path).values()))
    targets = set(re.findall(r"^([a-z-]+):", (SOURCE_ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make ([a-z-]+)", commands, re.MULTILINE)) <= targets
    for script in re.findall(r"(?:bash )?(\.(?:ci|github)/\S+)", commands):
        assert (SOURCE_ROOT / script).is_file(), script


def test_all_images_are_released() -> None:
    documented = set(
        re.findall(r'"(cog-triton-[\w-]+)"', (SOURCE_ROOT / "tests/nix/evaluation.nix").read_text())
    )
    (release,) = (path for path in WORKFLOWS if path.stem == "release")
    jobs = _jobs(release)
    assert set(jobs["nix"]["strategy"]["matrix"]["image"]) == documented
    built = jobs["docker"]["strategy"]["matrix"]["include"]
    assert {each["image"] for each in built} == documented
    for each in built:
        assert (DOCKER / f"{each['file']}.Dockerfile").is_file()
        assert each["target"] in each["image"]
        assert each["image"].endswith(f"-{each['sm']}" if each["sm"] else ("builder", "-cpu"))


def test_what_is_pushed_is_signed() -> None:
    (release,) = (path for path in WORKFLOWS if path.stem == "release")
    for name in ("nix", "docker"):
        commands = _commands(_jobs(release)[name])
        assert commands.index("push") < commands.index("cosign sign --yes")


@pytest.mark.parametrize("name", ["compose", "compose.gpu"])
def test_compose_mounts_and_builds_what_exists(name: str) -> None:
    document = yaml.safe_load((DOCKER / f"{name}.yaml").read_text())
    for service in document["services"].values():
        if "dockerfile" in service.get("build", {}):
            assert (SOURCE_ROOT / service["build"]["dockerfile"]).is_file()
        for volume in service.get("volumes", []):
            source = volume.split(":")[0]
            assert (DOCKER / source).is_dir() if source[0] == "." else source in document["volumes"]


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    services = yaml.safe_load((DOCKER / "compose.yaml").read_text())["services"]
    (source,) = yaml.safe_load((DOCKER / "grafana/datasources/prometheus.yaml").read_text())["datasources"]
    (provider,) = yaml.safe_load((DOCKER / "grafana/dashboards/cog-triton.yaml").read_text())["providers"]
    assert source["url"] == "http://runner:9090"
    assert services["prometheus"]["network_mode"] == "service:runner"
    assert f"../grafana:{provider['options']['path']}:ro" in services["grafana"]["volumes"]


@pytest.mark.parametrize("path", sorted(DOCKER.glob("*.Dockerfile")), ids=lambda path: path.stem)
def test_dockerfiles_copy_what_the_build_sees(path: Path) -> None:
    seen = {line[1:] for line in (SOURCE_ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"}
    for copied in re.findall(r"^COPY (?!--from)(\S+)", path.read_text(), re.MULTILINE):
        assert (SOURCE_ROOT / copied).exists()
        assert any(each.split("/")[0] == copied.split("/")[0] for each in seen), copied
