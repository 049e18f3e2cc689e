"""Renew a lock: ``nix run .#lock -- STACK [VERSION]``, such as ``tensorrt-llm 0.16.0`` or ``serving``.

What each stack asks for stands in nix/locks/stacks.json. PyPI alone is asked, whatever pip's configuration
says: Nix will fetch from there. ``PIP_INDEX_URL`` names a mirror of it, ``PIP_FIND_LINKS`` a folder of more.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOCKS = ROOT / "nix" / "locks"
TOOLS = ("pip==26.3", "packaging==26.3")
"""Versions of the resolver: pinned, so that a renewed lock changes only where the index did."""


def main() -> int:
    stacks = json.loads((LOCKS / "stacks.json").read_text())
    names = {name.removeprefix("engine-"): name for name in stacks}
    parser = argparse.ArgumentParser(prog="nix run .#lock --", description=__doc__.partition("\n")[0])
    parser.add_argument("stack", choices=names, help="what to resolve")
    parser.add_argument("version", nargs="?", help="of the stack's main package; default: as in stacks.json")
    options = parser.parse_args()
    stack = names[options.stack]
    spec = stacks[stack]
    if options.version and "version" not in spec:
        parser.error(f"{options.stack} has no main package: its versions are pinned in requirements/")
    python = f"python{spec['python']}"
    if shutil.which(python) is None:
        parser.error(f"{python} was not found; `nix run .#lock` brings it")
    try:
        return _renew(stack, python, options.version or spec.get("version", ""))
    except subprocess.CalledProcessError as error:
        print(f"lock: `{' '.join(error.cmd)}` failed; what it says is above", file=sys.stderr)
        return 1


def _renew(stack: str, python: str, version: str) -> int:
    """Resolve in a fresh environment of the stack's own Python; return the resolver's exit status."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([python, "-m", "venv", folder], check=True)
        own = str(Path(folder) / "bin" / "python")
        environment = {**os.environ, "PIP_CONFIG_FILE": os.devnull, "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
        environment.pop("PIP_EXTRA_INDEX_URL", None)
        subprocess.run([own, "-m", "pip", "install", "--quiet", *TOOLS], check=True, env=environment)
        arguments = [stack, str(LOCKS / "stacks.json"), str(LOCKS / f"{stack}.json"), version]
        command = [own, "-m", "nix.lock.resolve", *arguments]
        return subprocess.run(command, check=False, cwd=ROOT, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
