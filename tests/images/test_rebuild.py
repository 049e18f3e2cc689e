"""The same revision gives the same image; another one differs in as little as it can."""

import subprocess
import time
from pathlib import Path

import pytest

from tests.images.conftest import ROOT
from tests.images.registry import RegistryServer
from tests.images.result import Result, build, nix

pytestmark = pytest.mark.servers


def _derivations(name: str) -> list[str]:
    """Our own derivations that an image is made by: environments, layers and what is put into them."""
    top = nix("eval", "--raw", f"{ROOT}#{name}.drvPath")
    run = subprocess.run(
        ["nix-store", "--query", "--requisites", top], stdout=subprocess.PIPE, text=True, check=True
    )
    ours = ("cog-triton-", "layer-", "base.drv", "runner-code.drv")
    return [line for line in run.stdout.split() if line.partition("-")[2].startswith(ours)]


def test_another_nix_builds_the_same_bytes_of_everything_of_ours(runner: Result, trixie_nix: Path) -> None:
    derivations = _derivations("cog-triton-runner-cpu")
    assert len(derivations) >= 8
    subprocess.run([trixie_nix / "nix-store", "--realise", "--check", "--quiet", *derivations], check=True)


@pytest.fixture
def changed_checkout(tmp_path: Path) -> Path:
    """Provide a clone whose runner differs in a line that was never built before."""
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", ROOT, checkout], check=True)
    with (checkout / "runner" / "run.py").open("a") as file:
        file.write(f"\n# changed {time.time_ns()}\n")
    return checkout


def test_a_change_in_our_code_is_pushed_in_less_than_a_mebibyte(
    runner: Result, registry: RegistryServer, changed_checkout: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runner.run("push", f"{registry.host}/team/before:1", "--dest-tls-verify=false")
    before = registry.blobs()
    start_s = time.monotonic()
    changed = build(changed_checkout, "cog-triton-runner-cpu")
    took_s = time.monotonic() - start_s
    changed.run("push", f"{registry.host}/team/before:2", "--dest-tls-verify=false")
    pushed_bytes = sum(size for digest, size in registry.blobs().items() if digest not in before)
    with capsys.disabled():
        print(f"\nrebuild after a code change: {took_s:.1f} s; pushed: {pushed_bytes:,} bytes")
    assert 0 < pushed_bytes < 1 << 20
    assert changed.reference != runner.reference
    old = {layer["digest"] for layer in runner.facts["layers"]}
    new = [layer["name"] for layer in changed.facts["layers"] if layer["digest"] not in old]
    assert new == ["cog-triton: runner code"]
