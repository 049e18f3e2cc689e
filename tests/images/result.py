"""Builds an image with Nix and runs the program that comes of it."""

from __future__ import annotations

import json
import subprocess
from functools import cached_property
from pathlib import Path
from typing import Any

_STAND_IN = Path(__file__).parents[1] / "nix" / "nixpkgs"


def nix(*arguments: str, program: str | Path = "nix") -> str:
    """Run Nix (or another one than Debian 12's) on the stand-in nixpkgs; returns its stdout."""
    options = ["--override-input", "nixpkgs", f"path:{_STAND_IN}", "--no-write-lock-file"]
    run = subprocess.run([program, *arguments, *options], stdout=subprocess.PIPE, text=True, check=True)
    return run.stdout


def build(checkout: Path, name: str) -> Result:
    """`nix build .#NAME` in a checkout."""
    (built,) = json.loads(nix("build", "--no-link", "--json", f"{checkout}#{name}"))
    return Result(Path(built["outputs"]["out"]))


class Result:
    """What `nix build` leaves as ``./result``."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def run(self, *arguments: str) -> str:
        run = subprocess.run([self.path, *arguments], stdout=subprocess.PIPE, text=True, check=True)
        return run.stdout

    @cached_property
    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = json.loads(self.run("inspect"))
        return facts

    @property
    def reference(self) -> str:
        return str(self.facts["reference"])
