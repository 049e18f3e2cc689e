"""Check that every shared library and program under some folders finds the libraries it names.

A library is found if one of the folders has a file of that name: packages load each other's libraries before
they need them. ``--absent`` names libraries of the host machine and of optional parts, which are not checked.
Standard library and readelf only.
"""

import argparse
import fnmatch
import os
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

_ELF_64 = b"\x7fELF\x02\x01"


def needed(path: Path) -> list[str]:
    """Return the sonames that a 64-bit ELF file needs; none for any other file."""
    with path.open("rb") as file:
        if file.read(len(_ELF_64)) != _ELF_64:
            return []
    command = ["readelf", "--wide", "--dynamic", str(path)]
    environment = {**os.environ, "LC_ALL": "C"}
    done = subprocess.run(command, env=environment, capture_output=True, check=False)
    return re.findall(r"\(NEEDED\) +Shared library: \[(.+)\]", done.stdout.decode(errors="replace"))


def missing(folders: list[Path], absent: list[str]) -> dict[str, list[Path]]:
    """Return the name of each library that is not found, with the files that need it."""
    files = [path for folder in folders for path in folder.rglob("*") if path.is_file()]
    names = {path.name for path in files}
    result = defaultdict(list)
    for path in files:
        if path.is_symlink():
            continue
        for name in needed(path):
            if name not in names and not any(fnmatch.fnmatchcase(name, pattern) for pattern in absent):
                result[name].append(path)
    return dict(result)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--absent", nargs="*", default=[], help="patterns of names that are not checked")
    parser.add_argument("folders", type=Path, nargs="+")
    options = parser.parse_args()
    found = missing(options.folders, options.absent)
    for name, files in sorted(found.items()):
        print(f"{name} is missing; {len(files)} files need it, such as {files[0]}", file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
