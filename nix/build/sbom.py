"""Write the content of an image as a CycloneDX document (JSON): files of its locks, and system packages.

    sbom.py --name NAME --created TIME --environment LOCK[=TREE]... [--store-paths FILE...]

With the finished TREE of an environment, files that are not installed there are omitted, and wheels have the
licences that they tell. The document depends on the input only. Standard library only.
"""

import argparse
import email
import json
import re
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

Component = dict[str, Any]

_SPEC = "1.6"
_NAMESPACE = uuid.UUID("5f2b4f0e-6d0c-5b57-9a2c-1c53a2f0a9d1")
"""Namespace of serial numbers: equal content has equal ones."""
_STORE_PATH = re.compile(r"/nix/store/[a-z0-9]{32}-(?P<name>.+?)-(?P<version>\d.*)")
_OURS = "cog-triton-"
_REQUIREMENT = re.compile(r"[A-Za-z0-9._-]+")


def document(name: str, created: str, components: list[Component], needs: dict[str, list[str]]) -> Component:
    """Return the CycloneDX document. ``needs``: references to references of dependencies."""
    components = sorted(components, key=lambda each: str(each["bom-ref"]))
    references = [str(each["bom-ref"]) for each in components]
    dependencies = [{"ref": name, "dependsOn": references}]
    dependencies += [{"ref": each, "dependsOn": sorted(set(needs.get(each, [])))} for each in references]
    content = json.dumps([name, created, components, dependencies], sort_keys=True)
    return {
        "$schema": f"http://cyclonedx.org/schema/bom-{_SPEC}.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": _SPEC,
        "serialNumber": uuid.uuid5(_NAMESPACE, content).urn,
        "version": 1,
        "metadata": {"timestamp": created, "component": {"type": "container", "bom-ref": name, "name": name}},
        "components": components,
        "dependencies": dependencies,
    }


def environment_components(lock: Path, tree: Path | None) -> tuple[list[Component], dict[str, list[str]]]:
    """Return the files of a lock that are in the tree, and what each requires."""
    content = json.loads(lock.read_text())
    installed = {} if tree is None else _installed(tree)
    files = [each for each in content["files"] if tree is None or _is_in(each, installed)]
    references = {_normal(each["name"]): _reference(content["stack"], each) for each in files}
    components, needs = [], {}
    for each in files:
        reference = _reference(content["stack"], each)
        component = _component(each, reference, content["stack"])
        if (metadata := installed.get(_distribution(each))) and (licences := _licences(metadata)):
            component["licenses"] = licences
        components.append(component)
        required = (_normal(_required(text)) for text in each.get("requires", []))
        needs[reference] = [references[name] for name in required if name in references]
    return components, needs


def system_components(store_paths: Iterator[str]) -> list[Component]:
    """Return the packages of nixpkgs among store paths: those with a version in their name."""
    found = {}
    for path in store_paths:
        match = _STORE_PATH.fullmatch(path)
        if match is None or match["name"].startswith(_OURS):
            continue
        purl = f"pkg:generic/{quote(match['name'])}@{quote(match['version'])}"
        found[path] = {
            "type": "library",
            "bom-ref": path,
            "name": match["name"],
            "version": match["version"],
            "purl": purl,
            "properties": [{"name": "cog-triton:part", "value": "base"}],
        }
    return list(found.values())


def _component(file: dict[str, Any], reference: str, stack: str) -> Component:
    is_wheel = file["file"].endswith(".whl")
    kind = "pypi" if is_wheel else "generic"
    version = quote(file["version"], safe="")
    properties = [{"name": "cog-triton:part", "value": stack}]
    if "source" in file:
        properties.append({"name": "cog-triton:source", "value": file["source"]})
    return {
        "type": "library",
        "bom-ref": reference,
        "name": file["name"],
        "version": file["version"],
        "hashes": [{"alg": "SHA-256", "content": file["sha256"]}],
        "purl": f"pkg:{kind}/{_normal(file['name'])}@{version}?file_name={quote(file['file'])}",
        "properties": properties,
    }


def _reference(stack: str, file: dict[str, Any]) -> str:
    return f"{stack}/{file['file']}"


def _installed(tree: Path) -> dict[str, Path]:
    """Return the folders of installed wheels' metadata, by name and version."""
    found = tree.glob("lib/python3.*/site-packages/*.dist-info")
    return {_normal(each.name.removesuffix(".dist-info")): each for each in found}


def _distribution(file: dict[str, Any]) -> str:
    return _normal("-".join(file["file"].split("-")[:2]))


def _is_in(file: dict[str, Any], installed: dict[str, Path]) -> bool:
    return not file["file"].endswith(".whl") or _distribution(file) in installed


def _licences(metadata: Path) -> list[Component]:
    """Return the licences that a wheel tells: as an SPDX expression, by classifiers, or in words."""
    headers = email.message_from_bytes((metadata / "METADATA").read_bytes())
    if expression := headers["License-Expression"]:
        return [{"expression": expression}]
    classifiers = [each.split(" :: ") for each in headers.get_all("Classifier", [])]
    names = {each[-1] for each in classifiers if each[0] == "License" and len(each) > 2}
    # Some have the whole text there: its first line is the title.
    words = str(headers["License"] or "").strip().partition("\n")[0]
    return [{"license": {"name": name}} for name in sorted(names) or [words] if name]


def _required(text: str) -> str:
    match = _REQUIREMENT.match(text)
    return "" if match is None else match[0]


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", required=True, help="of the image")
    parser.add_argument("--created", required=True, help="time in RFC 3339")
    parser.add_argument("--environment", action="append", default=[], metavar="LOCK[=TREE]")
    parser.add_argument("--store-paths", type=Path, action="append", default=[], help="file with one a line")
    options = parser.parse_args()
    lines = (line for path in options.store_paths for line in path.read_text().splitlines())
    components, needs = system_components(lines), dict[str, list[str]]()
    for environment in options.environment:
        lock, _, tree = environment.partition("=")
        found, requires = environment_components(Path(lock), Path(tree) if tree else None)
        components += found
        needs |= requires
    json.dump(document(options.name, options.created, components, needs), sys.stdout, indent=2)
    print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
