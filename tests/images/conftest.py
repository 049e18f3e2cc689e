"""Images built by Nix on the stand-in nixpkgs, a real Docker daemon, a real registry: see ``run.sh``."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine.download.address import ALLOW_VARIABLE
from tests.images.container import Container, docker, http_server
from tests.images.registry import RegistryServer
from tests.images.result import Result, build

ROOT = Path(__file__).parents[2]

collect_ignore_glob = [] if "COG_TRITON_TEST_IMAGES" in os.environ else ["test_*.py"]

_TIMEOUT_S = 1800
"""The limit of any test here: the first one builds the images and downloads what they are made of."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.nodeid.startswith("tests/images/"):
            item.add_marker(pytest.mark.timeout(_TIMEOUT_S))


@pytest.fixture(scope="session")
def trixie_nix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of Debian trixie's Nix 2.26: its programs `nix` and `nix-store`."""
    folder = tmp_path_factory.mktemp("trixie")
    subprocess.run([Path(__file__).with_name("trixie_nix.sh"), folder], check=True)
    return folder


@pytest.fixture(scope="session")
def runner() -> Result:
    result = build(ROOT, "cog-triton-runner-cpu")
    result.run("load")
    return result


@pytest.fixture(scope="session")
def builder() -> Result:
    result = build(ROOT, "cog-triton-builder-cpu")
    result.run("load")
    return result


@pytest.fixture(scope="session")
def engines() -> Iterator[Path]:
    """Yield a folder that everyone may read: containers run as a user of their own."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


@pytest.fixture(scope="session")
def engine_tar(builder: Result, engines: Path) -> Path:
    """Return the tiny engine, built in the builder's container and copied out of it as documented."""
    path = engines / "engine.tar"
    allow = ("-e", f"{ALLOW_VARIABLE}=true")  # The config is served on this machine.
    with Container(builder.reference, *allow) as container, http_server(ROOT) as url:
        container.wait_ready()
        answer = container.predict({"config": f"{url}/builder/examples/tiny/config.yaml"})
        assert answer["status"] == "succeeded", answer
        docker("container", "cp", f"{container.id}:/src/engine.tar", str(path))
    return path


@pytest.fixture(scope="session")
def engine_dir(engine_tar: Path, engines: Path) -> Path:
    """Return the engine unpacked, as documented, to be mounted."""
    folder = engines / "triton_model_repo" / "tensorrt_llm" / "1"
    folder.mkdir(parents=True)
    subprocess.run(["tar", "xf", engine_tar, "-C", folder], check=True)
    return folder


@pytest.fixture(scope="session")
def serving(runner: Result, engine_dir: Path) -> Iterator[Container]:
    """Yield a runner that serves the tiny engine from a mounted folder."""
    mount = f"{engine_dir}:/src/triton_model_repo/tensorrt_llm/1:ro"
    with Container(runner.reference, "--volume", mount) as container:
        container.wait_ready()
        yield container


@pytest.fixture(scope="session")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RegistryServer]:
    with RegistryServer(tmp_path_factory.mktemp("registry")) as server:
        yield server
