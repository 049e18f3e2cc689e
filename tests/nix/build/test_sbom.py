"""Every image's lock becomes a valid CycloneDX document, the same each time, that names every file."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

LOCKS = Path(__file__).parents[3] / "nix" / "locks"
ENGINES = sorted(path.stem for path in LOCKS.glob("engine-*.json"))
SCRIPT = LOCKS.parent / "build" / "sbom.py"


def sbom(*arguments: str) -> str:
    command = [sys.executable, SCRIPT, "--name", "x", "--created", "2026-01-02T03:04:05Z", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def environments(*stacks: str) -> list[str]:
    return [word for stack in stacks for word in ("--environment", str(LOCKS / f"{stack}.json"))]


def problem(text: str) -> object:
    return JsonStrictValidator(SchemaVersion.V1_6).validate_str(text)


def _name(words: str) -> dict[str, Any]:
    return {"license": {"name": words}}


def _install(metadata: Path, headers: str) -> None:
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(headers)


@pytest.mark.parametrize("engine", ENGINES)
def test_it_is_valid_whole_and_the_same_each_time(engine: str) -> None:
    text = sbom(*environments(engine, "serving"))
    assert problem(text) is None
    assert text == sbom(*environments(engine, "serving"))
    found = json.loads(text)
    files = [
        each
        for stack in (engine, "serving")
        for each in json.loads((LOCKS / f"{stack}.json").read_text())["files"]
    ]
    hashes = sorted(each["hashes"][0]["content"] for each in found["components"])
    assert hashes == sorted(each["sha256"] for each in files)
    references = {each["bom-ref"] for each in found["components"]}
    assert len(references) == len(files)
    assert {each["ref"] for each in found["dependencies"]} == {*references, "x"}


def test_another_content_has_another_number_and_the_validator_refuses_what_is_wrong() -> None:
    numbers = {json.loads(sbom(*environments(engine)))["serialNumber"] for engine in ENGINES}
    assert len(numbers) == len(ENGINES) > 1
    assert problem(sbom().replace('"version": 1', '"version": "one"')) is not None


def test_a_wheel_names_its_hash_its_place_and_what_it_needs() -> None:
    found = json.loads(sbom(*environments("serving")))
    (aiohttp,) = _named(found, "aiohttp")
    assert aiohttp["purl"].startswith(f"pkg:pypi/aiohttp@{aiohttp['version']}?file_name=aiohttp-")
    (needs,) = (each for each in found["dependencies"] if each["ref"] == aiohttp["bom-ref"])
    assert any(each.startswith("serving/yarl-") for each in needs["dependsOn"])


def test_what_an_image_leaves_out_is_not_in_it(tmp_path: Path) -> None:
    site_packages = tmp_path / "lib" / "python3.11" / "site-packages"
    lock = json.loads((LOCKS / "serving.json").read_text())
    (yaml,) = (each for each in lock["files"] if each["name"] == "pyyaml")
    # As a wheel may spell it inside.
    _install(site_packages / f"PyYAML-{yaml['version']}.dist-info", "Name: PyYAML\n")
    found = json.loads(sbom("--environment", f"{LOCKS / 'serving.json'}={tmp_path}"))
    assert [each["name"] for each in found["components"]] == ["pyyaml"]


@pytest.mark.parametrize(
    ("headers", "licences"),
    [
        ("License-Expression: MIT OR Apache-2.0\nLicense: MIT", [{"expression": "MIT OR Apache-2.0"}]),
        ("License: MIT\nClassifier: License :: OSI Approved :: MIT License", [_name("MIT License")]),
        ("License: NVIDIA Proprietary\nClassifier: License :: OSI Approved", [_name("NVIDIA Proprietary")]),
        ("License:\n                  Apache License\n        Version 2.0", [_name("Apache License")]),
        ("Name: PyYAML", None),
    ],
)
def test_a_wheel_has_the_licences_that_it_tells(tmp_path: Path, headers: str, licences: list[Any]) -> None:
    lock = json.loads((LOCKS / "serving.json").read_text())
    (yaml,) = (each for each in lock["files"] if each["name"] == "pyyaml")
    _install(tmp_path / f"lib/python3.11/site-packages/pyyaml-{yaml['version']}.dist-info", headers)
    text = sbom("--environment", f"{LOCKS / 'serving.json'}={tmp_path}")
    assert problem(text) is None
    (component,) = json.loads(text)["components"]
    assert component.get("licenses") == licences


def test_packages_of_the_system_are_told_by_their_store_paths(tmp_path: Path) -> None:
    paths = tmp_path / "store-paths"
    digest = "0" * 32
    ours = ["cog-triton-engine-vllm-86", "runner-code"]
    names = ["glibc-2.40-66", "gcc-wrapper-14.2.1", *ours, "python3-3.11.12"]
    paths.write_text("".join(f"/nix/store/{digest}-{name}\n" for name in names))
    text = sbom("--store-paths", str(paths))
    assert problem(text) is None
    found = {each["name"]: each["version"] for each in json.loads(text)["components"]}
    assert found == {"glibc": "2.40-66", "gcc-wrapper": "14.2.1", "python3": "3.11.12"}


def _named(found: dict[str, Any], name: str) -> list[dict[str, Any]]:
    return [each for each in found["components"] if each["name"] == name]
