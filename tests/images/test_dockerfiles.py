"""The images of ``deploy/docker``, built without Nix, are what Nix builds, and serve.

In place of ``python:3.11-slim-bookworm``, which is in a registry: a base made of Debian packages. In place of
a package index: wheels that pip downloads first.
"""

import json
import re
import string
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from deploy.docker.environment import download
from tests.images.container import WITHOUT_RIGHTS, Container, docker, http_server
from tests.images.result import Result, nix

pytestmark = pytest.mark.servers

ROOT = Path(__file__).parents[2]
DOCKERFILES = ROOT / "deploy" / "docker"
_BASE = "debian-python"
_BASE_PACKAGES = "ca-certificates,libgomp1,libpython3.11,libstdc++6,python3.11,python3.11-venv,tini,zlib1g"
_OTHER_SYSTEM = {"LD_LIBRARY_PATH", "PATH", "SSL_CERT_FILE"}
"""Variables that say where the base has its files."""


@pytest.fixture(scope="module")
def base() -> str:
    make = ["mmdebstrap", "--quiet", "--variant=essential", f"--include={_BASE_PACKAGES}"]
    make += [f"--dpkgopt=path-exclude=/usr/share/{each}/*" for each in ("doc", "info", "locale", "man")]
    make += ["--dpkgopt=force-unsafe-io", "bookworm", "-"]
    with subprocess.Popen(make, stdout=subprocess.PIPE) as rootfs:
        subprocess.run(["docker", "import", "-", _BASE], stdin=rootfs.stdout, check=True)
    assert rootfs.returncode == 0
    return _BASE


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("wheels")
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("PIP_RETRIES", "0")  # PyTorch's own page may be out of reach.
        for lock in ("serving", "engine-transformers-cpu"):
            download(json.loads((ROOT / "nix" / "locks" / f"{lock}.json").read_text())["files"], folder)
    with http_server(folder) as url:
        yield url


def _build(target: str, base: str, wheels: str) -> str:
    reference = f"cog-triton-{target}-cpu-debian"
    settings = {
        "PYTHON": base,
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": wheels,
        "PIP_TRUSTED_HOST": wheels.split("/")[2].partition(":")[0],
    }
    options = [word for name, value in settings.items() for word in ("--build-arg", f"{name}={value}")]
    file = DOCKERFILES / "cpu.Dockerfile"
    docker("build", "--file", str(file), "--target", target, "--tag", reference, *options, str(ROOT))
    return reference


@pytest.fixture(scope="module")
def docker_runner(base: str, wheels: str) -> str:
    return _build("runner", base, wheels)


@pytest.fixture(scope="module")
def docker_builder(base: str, wheels: str) -> str:
    return _build("builder", base, wheels)


def test_one_image_builds_an_engine_and_the_other_serves_it(docker_builder: str, docker_runner: str) -> None:
    subprocess.run([ROOT / ".github" / "ask.sh", docker_builder, docker_runner], check=True)


def test_any_user_without_rights_can_run_it_and_keep_a_cache(docker_runner: str, engine_dir: Path) -> None:
    options = [*WITHOUT_RIGHTS, "--volume", "/home/cog/.cache"]
    mount = f"{engine_dir}:/src/triton_model_repo/tensorrt_llm/1:ro"
    with Container(docker_runner, *options, "--volume", mount) as container:
        container.wait_ready()
        assert container.predict({"prompt": "The whale", "max_tokens": 8})["status"] == "succeeded"
        container.execute("mkdir", "/home/cog/.cache/cog-triton")  # Fails if it is not writable.
        assert container.unsafe_paths() == ""


def test_the_image_has_the_settings_and_the_code_of_nixs(docker_runner: str, runner: Result) -> None:
    config = json.loads(docker("image", "inspect", "--format", "{{json .Config}}", docker_runner))
    assert _settings(config) == _settings(runner.facts["config"])
    script = "from pathlib import Path; print(sorted(map(str, Path('/src').rglob('*'))))"
    code = [
        docker("run", "--rm", image, "python", "-c", script) for image in (docker_runner, runner.reference)
    ]
    assert code[0] == code[1]


@pytest.mark.parametrize(
    ("file", "target", "image"),
    [
        ("cpu", "builder", "cog-triton-builder-cpu"),
        ("vllm", "runner", "cog-triton-runner-vllm-90"),
        ("tensorrt_llm", "runner", "cog-triton-runner-90"),
        ("tensorrt_llm", "builder", "cog-triton-builder"),
    ],
)
def test_a_dockerfile_has_the_settings_of_nixs(file: str, target: str, image: str) -> None:
    config = _stage(DOCKERFILES / f"{file}.Dockerfile", target)
    expected = json.loads(nix("eval", "--json", f"{ROOT}#{image}.config"))
    assert _settings(config) == _settings(expected)
    folders = [path for path in _environment(expected)["LD_LIBRARY_PATH"].split(":") if "engine" in path]
    found = _environment(config).get("LD_LIBRARY_PATH", "").split(":")
    assert [path for path in found if "engine" in path] == folders


def _settings(config: dict[str, Any]) -> dict[str, Any]:
    """Return what an image's configuration says of how it runs, on whatever system."""
    names = ("Cmd", "Entrypoint", "User", "WorkingDir")
    variables = {name: value for name, value in _environment(config).items() if name not in _OTHER_SYSTEM}
    return {name: config[name] for name in names} | {
        "Env": variables,
        "ports": set(config["ExposedPorts"]),
        "health": config.get("Healthcheck"),
    }


def _environment(config: dict[str, Any]) -> dict[str, str]:
    return dict(variable.split("=", 1) for variable in config["Env"])


def _stage(path: Path, target: str) -> dict[str, Any]:
    """Return the configuration that a Dockerfile gives to a stage, as `docker inspect` shows it."""
    stages: dict[str, dict[str, Any]] = {}
    config: dict[str, Any] = {}
    arguments: dict[str, str] = {}
    for line in re.sub(r"\\\n", "", re.sub(r"^#.*\n", "", path.read_text(), flags=re.MULTILINE)).splitlines():
        instruction, _, rest = line.strip().partition(" ")
        if instruction == "FROM":
            parent, _, name = rest.split()
            below = stages.get(parent, {"Env": [], "ExposedPorts": {}})
            stages[name] = config = {
                **below,
                "Env": [*below["Env"]],
                "ExposedPorts": {**below["ExposedPorts"]},
            }
        elif instruction == "ARG":
            arguments |= dict([rest.partition("=")[::2]])
        elif instruction == "ENV":
            config["Env"] += string.Template(rest).safe_substitute(arguments).split()
        elif instruction == "EXPOSE":
            config["ExposedPorts"] |= {f"{port}/tcp": {} for port in rest.split()}
        elif instruction == "HEALTHCHECK":
            options, _, command = rest.partition(" CMD ")
            config["Healthcheck"] = _durations_ns(options) | {"Test": ["CMD", *json.loads(command)]}
        elif instruction in ("CMD", "ENTRYPOINT"):
            config[instruction.capitalize()] = json.loads(rest)
        elif instruction in ("USER", "WORKDIR"):
            config[{"USER": "User", "WORKDIR": "WorkingDir"}[instruction]] = rest
    return stages[target]


def _durations_ns(options: str) -> dict[str, int]:
    """Return the options of a HEALTHCHECK as Docker stores them: ``--start-period=30m``."""
    seconds = {"s": 1, "m": 60}
    return {
        name.title().replace("-", ""): int(value[:-1]) * seconds[value[-1]] * 10**9
        for name, _, value in (option.removeprefix("--").partition("=") for option in options.split())
    }
