"""The same revision gives the same image; another one differs in as little as it can."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import pytest

from tests.images.conftest import ROOT
from tests.images.result import Result, build, nix


def _derivations(name: str) -> list[str]:
    """Our own derivations that an image is made by: environments, layers and what is put into them."""
    top = nix("eval", "--raw", f"{ROOT}#{name}.drvPath")
    run = subprocess.run(
        ["nix-store", "--query", "--requisites", top], stdout=subprocess.PIPE, text=True, check=True
    )
    ours = ("cog-triton-", "layer-", "base.drv", "runner-code.drv")
    return [line for line in run.stdout.split() if line.partition("-")[2].startswith(ours)]


def test_building_everything_of_ours_again_gives_the_same_bytes(runner: Result) -> None:
    derivations = _derivations("cog-triton-runner-cpu")
    assert len(derivations) >= 8
    subprocess.run(["nix-store", "--realise", "--check", "--quiet", *derivations], check=True)


def test_a_change_in_our_code_changes_the_top_layer_alone(
    runner: Result, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", ROOT, checkout], check=True)
    with (checkout / "runner" / "run.py").open("a") as file:
        file.write(f"\n# changed {time.time_ns()}: never built before\n")
    start_s = time.monotonic()
    changed = build(checkout, "cog-triton-runner-cpu")
    took_s = time.monotonic() - start_s
    old = {layer["digest"] for layer in runner.facts["layers"]}
    new = [layer for layer in changed.facts["layers"] if layer["digest"] not in old]
    assert [layer["name"] for layer in new] == ["cog-triton: runner code"]
    sent_bytes = sum(layer["compressed_bytes"] for layer in new)
    with capsys.disabled():
        print(f"\nrebuild after a code change: {took_s:.1f} s; to push: {sent_bytes:,} bytes")
    assert sent_bytes < 1 << 20
    assert changed.reference != runner.reference
