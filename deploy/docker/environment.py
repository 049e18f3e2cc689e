"""Make one environment of an image as Nix makes it: of the same lock, by the same programs.

Run by the Dockerfiles with the environment's own Python, in the folder that has ``nix``. pip downloads, by
its settings (PIP_INDEX_URL, PIP_FIND_LINKS, ...). Standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.request
import venv
from pathlib import Path
from typing import Any

NIX = Path("nix").resolve()
PAGES = {
    "pytorch-cpu": "https://download.pytorch.org/whl/cpu/torch/",
    "nvidia-wheels": "https://pypi.nvidia.com/tensorrt-llm/",
}
"""Pages where pip looks for the wheels of these sources besides its index."""
ARCHIVES = "https://developer.nvidia.com/downloads/compute/machine-learning/tensorrt/10.7.0/tars"


def download(files: list[dict[str, Any]], folder: Path) -> None:
    """Download the files of a lock and check each against its SHA-256."""
    venv.create(folder / "pip", with_pip=True)
    wheels = [each for each in files if each["file"].endswith(".whl")]
    lines = [f"{each['name']}=={each['version']} --hash=sha256:{each['sha256']}\n" for each in wheels]
    requirements = folder / "requirements.txt"
    requirements.write_text("".join(lines))
    command = [str(folder / "pip" / "bin" / "python"), "-m", "pip", "download", "--quiet", "--no-cache-dir"]
    command += ["--disable-pip-version-check", "--no-deps", "--require-hashes", "--only-binary=:all:"]
    if not os.environ.get("PIP_NO_INDEX"):
        sources = {each["source"] for each in wheels if each.get("source")}
        command += [f"--find-links={PAGES[source]}" for source in sorted(sources)]
    subprocess.run([*command, "--dest", str(folder), "--requirement", str(requirements)], check=True)
    for each in files:
        path = folder / each["file"]
        if each not in wheels:
            with urllib.request.urlopen(f"{ARCHIVES}/{each['file']}") as source, path.open("wb") as target:  # noqa: S310
                shutil.copyfileobj(source, target)
            check(path, each["sha256"])


def check(path: Path, sha256: str) -> None:
    digest = hashlib.sha256()
    with path.open("rb") as content:
        while block := content.read(1 << 20):
            digest.update(block)
    if digest.hexdigest() != sha256:
        raise SystemExit(f"{path.name}: its SHA-256 is {digest.hexdigest()}, and the lock has {sha256}")


def left_out(stack: str, sm: str) -> list[str]:
    lists = json.loads((NIX / "left-out.json").read_text())
    patterns = [*lists["sm"][sm]] if sm else []
    groups = lists["serving"] if stack == "serving" else lists["runners"] if sm else {}
    return [*patterns, *(pattern for group in groups.values() for pattern in group)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("stack", help="name of a lock in nix/locks")
    parser.add_argument("out", help="folder to make")
    parser.add_argument("--sm", default="", help="slim for this GPU architecture, such as 90")
    parser.add_argument("--alias", default="", help="NAME=MODULE: one more name for a module")
    options = parser.parse_args()
    lock = json.loads((NIX / "locks" / f"{options.stack}.json").read_text())
    running = "{}.{}".format(*sys.version_info)
    if running != lock["python"]:
        parser.error(f"{options.stack} is for Python {lock['python']}, and this is {running}")
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        download(lock["files"], folder)
        slim = f"{sys.executable} {NIX / 'slim'} --sm {options.sm} --drop-debug" if options.sm else ""
        settings = {
            "out": options.out,
            "wheels": " ".join(str(path) for path in sorted(folder.glob("*.whl"))),
            "archives": " ".join(str(path) for path in sorted(folder.glob("*.tar.gz"))),
            "leaveOut": " ".join(left_out(options.stack, options.sm)),
            "aliases": options.alias,
            "python": sys.executable,
            "installWheels": str(NIX / "build" / "install_wheels.py"),
            "slim": slim,
            "NIX_BUILD_CORES": str(os.cpu_count() or 1),
        }
        script = ["bash", "-eu", "-o", "pipefail", str(NIX / "build" / "environment.sh")]
        subprocess.run(script, cwd=folder, env={**os.environ, **settings}, check=True)


if __name__ == "__main__":
    main()
