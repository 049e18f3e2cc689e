"""``cog-triton instantiate`` writes an image in a real registry that differs from its base as it should."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from cli.main import main
from tests.images.container import Container, docker
from tests.images.registry import RegistryServer
from tests.images.result import Result

pytestmark = pytest.mark.servers

_TEMPLATE = "{system_prompt}\n\nQ: {prompt}\nA:"


def _config(folder: Path, **section: Any) -> str:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({"instantiate": section}))
    return str(path)


def _image(reference: str) -> dict[str, Any]:
    """Return the configuration of an image in a registry."""
    command = [
        "skopeo",
        "--insecure-policy",
        "inspect",
        "--tls-verify=false",
        "--config",
        f"docker://{reference}",
    ]
    document: dict[str, Any] = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)
    return document


@pytest.fixture(scope="module")
def base(runner: Result, registry: RegistryServer) -> str:
    reference = f"{registry.host}/base/runner:1"
    runner.run("push", reference, "--dest-tls-verify=false")
    return reference


@pytest.fixture
def instance(base: str, registry: RegistryServer, tmp_path: Path) -> str:
    reference = f"{registry.host}/team/llama:chat"
    config = _config(
        tmp_path,
        base_model=base,
        staging_dest=reference,
        weights="file:///weights/engine.tar",
        system_prompt="You speak as a whaler.",
        prompt_template=_TEMPLATE,
        server={"tensorrt_llm": {"args": {"max_queue_delay_microseconds": 50}}},
    )
    assert main(["instantiate", config]) == 0
    return reference


def test_it_differs_only_in_environment_and_one_small_layer(
    base: str, instance: str, registry: RegistryServer
) -> None:
    old, new = _image(base), _image(instance)
    assert new["rootfs"]["diff_ids"][:-1] == old["rootfs"]["diff_ids"]
    added = set(new["config"]["Env"]) - set(old["config"]["Env"])
    assert added == {
        "COG_WEIGHTS=file:///weights/engine.tar",
        "SYSTEM_PROMPT=You speak as a whaler.",
        f"PROMPT_TEMPLATE={_TEMPLATE}",
    }
    rest = [{**image["config"], "Env": None} for image in (old, new)]
    assert rest[0] == rest[1]


def test_only_kilobytes_are_sent_and_doing_it_again_gives_the_same_digest(
    base: str, registry: RegistryServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = _config(
        tmp_path, base_model=base, staging_dest=f"{registry.host}/team/same:1", weights="https://x/y.tar"
    )
    before, pushed = registry.blobs(), []
    for _ in range(2):
        assert main(["instantiate", config]) == 0
        pushed.append(capsys.readouterr().out.splitlines()[-1])
    added = {digest: size for digest, size in registry.blobs().items() if digest not in before}
    assert sum(added.values()) < 64 << 10
    assert pushed[0] == pushed[1]
    assert "@sha256:" in pushed[0]


def test_the_new_image_serves_with_its_own_settings(instance: str, engine_tar: Path) -> None:
    docker("pull", "--quiet", instance)
    with Container(instance, "--volume", f"{engine_tar.parent}:/weights:ro") as container:
        container.wait_ready()
        answer = container.predict({"prompt": "Who are you?", "max_tokens": 4})
        assert answer["status"] == "succeeded"
        assert "You speak as a whaler.\n\nQ: Who are you?\nA:" in answer["logs"]
        rendered = container.execute("sh", "-c", "cat /tmp/cog-triton-*/8000/model_repository/*/config.pbtxt")
        assert "max_queue_delay_microseconds: 50" in rendered


def test_credentials_in_the_weights_url_are_not_shown(
    base: str, registry: RegistryServer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "https://user:secret@example.com/engine.tar?signature=hidden"
    config = _config(tmp_path, base_model=base, staging_dest=f"{registry.host}/team/url:1", weights=url)
    assert main(["instantiate", config]) == 0
    shown = capsys.readouterr()
    assert "secret" not in shown.out + shown.err
    assert "hidden" not in shown.out + shown.err
    assert f"COG_WEIGHTS={url}" in _image(f"{registry.host}/team/url:1")["config"]["Env"]


def test_a_base_that_is_no_runner_is_refused(
    builder: Result, registry: RegistryServer, tmp_path: Path, capsys: Any
) -> None:
    reference = f"{registry.host}/base/builder:1"
    builder.run("push", reference, "--dest-tls-verify=false")
    config = _config(tmp_path, base_model=reference, staging_dest=f"{registry.host}/a/b:1")
    assert main(["instantiate", config]) == 2
    assert "E1404 ImageUnsuitable" in capsys.readouterr().err


def test_two_registries_are_refused_before_anything_is_asked(tmp_path: Path, capsys: Any) -> None:
    config = _config(tmp_path, base_model="one.example.com/base:1", staging_dest="two.example.com/new:1")
    assert main(["instantiate", config]) == 2
    assert "E1405 BaseElsewhere" in capsys.readouterr().err
