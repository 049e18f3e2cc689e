"""Ask OSV's database for known vulnerabilities of everything that is pinned here: ``audit_dependencies.py``.

All locks of the images and all pinned requirements are asked about in one request. Exit status 0: none known;
1: some are, told one a line; 3: the database could not be asked, and nothing is known. Standard library only.
"""

from __future__ import annotations

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


class DatabaseAway(Exception):
    """The database did not answer, or not as it should."""


def pinned(root: Path) -> dict[Package, list[str]]:
    """All that is pinned, with the files that do it."""
    places: dict[Package, list[str]] = defaultdict(list)
    for lock in sorted(root.glob("nix/locks/*.json")):
        for file in json.loads(lock.read_text()).get("files", []):
            places[_normal(file["name"]), _public(file["version"])].append(lock.name)
    for requirements in sorted(root.glob("requirements/*.txt")):
        for match in _PINNED.finditer(requirements.read_text()):
            places[_normal(match["name"]), _public(match["version"])].append(requirements.name)
    return dict(places)


def vulnerabilities(packages: list[Package], database: str) -> dict[Package, list[str]]:
    """Ids of the known vulnerabilities of each package that has some. Raises DatabaseAway."""
    found: dict[Package, list[str]] = defaultdict(list)
    pending: list[tuple[Package, str | None]] = [(package, None) for package in packages]
    for _ in range(MAX_PAGES):
        if not pending:
            return dict(found)
        results = _ask([_query(*each) for each in pending], database)
        following = []
        for (package, _), result in zip(pending, results, strict=True):
            found[package] += [each["id"] for each in result.get("vulns", [])]
            if token := result.get("next_page_token"):
                following.append((package, token))
        pending = following
        found = defaultdict(list, {package: ids for package, ids in found.items() if ids})
    raise DatabaseAway(f"its answer has more than {MAX_PAGES} pages")


def _query(package: Package, page_token: str | None) -> dict[str, Any]:
    name, version = package
    query: dict[str, Any] = {"package": {"ecosystem": "PyPI", "name": name}, "version": version}
    return query if page_token is None else {**query, "page_token": page_token}


def _ask(queries: list[dict[str, Any]], database: str) -> list[dict[str, Any]]:
    body = json.dumps({"queries": queries}).encode()
    request = urllib.request.Request(  # noqa: S310 - who runs this names the database
        f"{database}/v1/querybatch", data=body, headers={"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:  # noqa: S310
            results = json.loads(answer.read())["results"]
    except (OSError, urllib.error.URLError, ValueError, KeyError, TypeError) as exc:
        raise DatabaseAway(str(exc) or type(exc).__name__) from exc
    if not isinstance(results, list) or len(results) != len(queries):
        raise DatabaseAway("its answer does not fit the question")
    return results


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _public(version: str) -> str:
    """Without the local part (``+cpu``): databases know published versions."""
    return version.partition("+")[0]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--database", default=DATABASE, help="URL of a server with OSV's API (%(default)s)")
    options = parser.parse_args()
    places = pinned(ROOT)
    try:
        found = vulnerabilities(sorted(places), options.database)
    except DatabaseAway as exc:
        print(f"not audited: {options.database} can't be asked ({exc}); nothing is known", file=sys.stderr)
        return 3
    for (name, version), ids in sorted(found.items()):
        print(f"{name} {version}: {', '.join(ids)} (in {', '.join(sorted(set(places[name, version])))})")
    print(f"{len(places)} packages asked about, {len(found)} with known vulnerabilities")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
