"""Every output of the flake evaluates on the stand-in, which refuses what it does not know."""

import json
import subprocess
from pathlib import Path

import pytest

from tests.images.conftest import ROOT
from tests.images.result import nix

pytestmark = pytest.mark.servers

_STAND_IN = ROOT / "tests" / "nix" / "nixpkgs"
_PYTORCH_LOCK = ROOT / "nix" / "locks" / "engine-tensorrt-llm-pytorch.json"


def test_checks_pass_and_outputs_evaluate(trixie_nix: Path) -> None:
    version = subprocess.run([trixie_nix / "nix", "--version"], stdout=subprocess.PIPE, text=True, check=True)
    assert "2.26" in version.stdout
    for program in ("nix", trixie_nix / "nix"):
        nix("flake", "check", str(ROOT), program=program)


def test_every_image_is_a_derivation(trixie_nix: Path) -> None:
    apply = "images: builtins.mapAttrs (name: image: image.drvPath) images"
    evaluate = ("eval", "--json", f"{ROOT}#packages.x86_64-linux", "--apply", apply)
    paths = json.loads(nix(*evaluate))
    assert len(paths) == (21 if _PYTORCH_LOCK.exists() else 15)
    assert paths["default"] == paths["cog-triton-runner-cpu"]
    assert all(path.endswith(f"{name}.drv") for name, path in paths.items() if name != "default")
    assert json.loads(nix(*evaluate, program=trixie_nix / "nix")) == paths


def test_images_of_the_pytorch_backend_come_with_their_lock(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", ROOT, checkout], check=True)
    lock = checkout / _PYTORCH_LOCK.relative_to(ROOT)
    lock.unlink(missing_ok=True)
    image = f"{checkout}#cog-triton-runner-tensorrt-llm-pytorch-90"
    stand_in = ["--override-input", "nixpkgs", f"path:{_STAND_IN}", "--no-write-lock-file"]
    refused = subprocess.run(
        ["nix", "build", image, *stand_in], stderr=subprocess.PIPE, text=True, check=False
    )
    assert refused.returncode == 1
    assert "has no lock yet: make it in a checkout by `nix run .#lock -- tensorrt-llm-py" in refused.stderr
    stack = lock.stem
    pinned = json.loads(lock.with_name("stacks.json").read_text())[stack]["pinned"]
    made_up = {"name": "torch", "version": "2.9.1+cu130", "sha256": "0" * 64, "source": "pytorch-cu130"}
    made_up["file"] = "torch-2.9.1+cu130-cp310-cp310-manylinux_2_28_x86_64.whl"
    head = {"stack": stack, "python": "3.10", "requirements": [], "left_out": {}}
    lock.write_text(json.dumps({**head, "files": [*pinned, made_up]}))
    subprocess.run(["git", "add", lock], cwd=checkout, check=True)
    nix("eval", f"{checkout}#checks.x86_64-linux.evaluation.drvPath")
    assert json.loads(nix("eval", "--json", f"{checkout}#legacyPackages.x86_64-linux")) == {}


def test_the_flake_only_wires() -> None:
    assert len((ROOT / "flake.nix").read_text().splitlines()) < 120
    lock = json.loads((ROOT / "flake.lock").read_text())
    assert set(lock["nodes"]) == {"nixpkgs", "root"}
    assert lock["nodes"]["nixpkgs"]["locked"]["rev"] in (ROOT / "flake.nix").read_text()


@pytest.mark.parametrize("output", ["devShells.x86_64-linux.default", "formatter.x86_64-linux"])
def test_what_developers_use_is_a_derivation(output: str) -> None:
    assert nix("eval", "--raw", f"{ROOT}#{output}.drvPath").endswith(".drv")


def test_renewing_a_lock_that_is_current_changes_nothing(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    subprocess.run(["git", "clone", "--quiet", ROOT, checkout], check=True)
    run = _lock(checkout, "serving")
    assert run.returncode == 0, run.stderr
    assert "files for Python 3.11" in run.stdout
    status = subprocess.run(["git", "status", "--short"], cwd=checkout, capture_output=True, check=True)
    assert status.stdout == b""


def test_locks_are_written_in_a_checkout_alone(tmp_path: Path) -> None:
    run = _lock(tmp_path, "serving")
    assert run.returncode == 2
    assert "in a checkout of cog-triton" in run.stderr


def _lock(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`nix run .#lock -- ...` with the flake of this checkout, in a folder."""
    stand_in = ["--override-input", "nixpkgs", f"path:{_STAND_IN}", "--no-write-lock-file"]
    command = ["nix", "run", f"{ROOT}#lock", *stand_in, "--", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
