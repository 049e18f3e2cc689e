"""Ask OSV's database for known vulnerabilities of all pinned packages: ``audit_dependencies.py``.

Reads the locks of the images and requirements/. Exit status 0: none known; 1: some known, printed one a line;
3: the database could not be asked. What wheels carry and the database does not know is printed with the date
of its review. Standard library only.
"""

import argparse
import json
import re
import sys
import urllib.error
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
DATABASE = "https://api.osv.dev"
TIMEOUT_S = 60.0
MAX_PAGES = 20
_PINNED = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;\\]+)", re.MULTILINE)

Package = tuple[str, str]
"""Name and version."""


REVIEWED: dict[Package, tuple[str, str, str]] = {
    ("nvidia-pytriton", "0.7.0"): (
        "tritonserver 2.51",
        "2026-11-25",
        "docs/security.md#known-vulnerabilities-of-triton-251",
    ),
    ("triton", "3.8.0"): (
        "cuobjdump and nvdisasm of CUDA",
        "2026-11-28",
        "docs/security.md#known-vulnerabilities-of-cuda",
    ),
    ("triton", "3.1.0"): (
        "cuobjdump and nvdisasm of CUDA",
        "2026-11-28",
        "docs/security.md#known-vulnerabilities-of-cuda",
    ),
}
"""Programs in wheels that no database lists: program, day of the last review of its advisories, and where."""


class DatabaseUnavailable(Exception):
    """The database did not answer, or its answer is invalid."""


def pinned(root: Path) -> dict[Package, list[str]]:
    """Return every pinned package, with the files that pin it."""
    places: dict[Package, list[str]] = defaultdict(list)
    for lock in sorted(root.glob("nix/locks/*.json")):
        for file in json.loads(lock.read_text()).get("files", []):
            places[_package(file["name"], file["version"])].append(lock.name)
    for requirements in sorted(root.glob("requirements/*.txt")):
        for match in _PINNED.finditer(requirements.read_text()):
            places[_package(match["name"], match["version"])].append(requirements.name)
    return dict(places)


def _package(name: str, version: str) -> Package:
    """Normalise the name and drop the version's local part (``+cpu``): databases know published versions."""
    return re.sub(r"[-_.]+", "-", name).lower(), version.partition("+")[0]


def vulnerabilities(packages: list[Package], database: str) -> dict[Package, list[str]]:
    """Return the ids of known vulnerabilities of each package that has some. Raises DatabaseUnavailable."""
    found: dict[Package, list[str]] = defaultdict(list)
    pending: list[tuple[Package, dict[str, str]]] = [(package, {}) for package in packages]
    for _ in range(MAX_PAGES):
        queries = [
            {"package": {"ecosystem": "PyPI", "name": name}, "version": version, **page}
            for (name, version), page in pending
        ]
        results = _ask(queries, database)
        for (package, _), result in zip(pending, results, strict=True):
            if ids := [each["id"] for each in result.get("vulns", [])]:
                found[package] += ids
        pending = [
            (package, {"page_token": result["next_page_token"]})
            for (package, _), result in zip(pending, results, strict=True)
            if result.get("next_page_token")
        ]
        if not pending:
            return dict(found)
    raise DatabaseUnavailable(f"its answer has more than {MAX_PAGES} pages")


def _ask(queries: list[dict[str, Any]], database: str) -> list[dict[str, Any]]:
    body = json.dumps({"queries": queries}).encode()
    request = urllib.request.Request(  # noqa: S310 - the user names the database
        f"{database}/v1/querybatch", data=body, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            results = json.loads(answer.read())["results"]
    except (OSError, urllib.error.URLError, ValueError, KeyError, TypeError) as exc:
        raise DatabaseUnavailable(str(exc) or type(exc).__name__) from exc
    if not isinstance(results, list) or len(results) != len(queries):
        raise DatabaseUnavailable("its answer does not match the request")
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", default=DATABASE, help="URL of a server with OSV's API (%(default)s)")
    options = parser.parse_args()
    places = pinned(ROOT)
    for package, (program, day, where) in REVIEWED.items():
        print(f"{program} (in {' '.join(package)}): advisories reviewed by hand on {day}, {where}")
    try:
        found = vulnerabilities(sorted(places), options.database)
    except DatabaseUnavailable as exc:
        print(f"not audited: {options.database} can't be asked ({exc}); nothing is known", file=sys.stderr)
        return 3
    for (name, version), ids in sorted(found.items()):
        print(f"{name} {version}: {', '.join(ids)} (in {', '.join(sorted(set(places[name, version])))})")
    print(f"{len(places)} packages asked about, {len(found)} with known vulnerabilities")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
