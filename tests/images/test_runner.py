"""The runner's image serves an engine as the README says, whoever runs it, and stops when told to."""

import shutil
import subprocess
import threading
from pathlib import Path

import httpx
import pytest

from cli.curl_forms import curl_forms
from tests.images.container import WITHOUT_RIGHTS, Container, docker, http_server
from tests.images.kubernetes import probe, run_options
from tests.images.result import Result

pytestmark = pytest.mark.servers

_FORMS = curl_forms(5000, 8000)
_PROMPT = {"prompt": "The whale", "max_tokens": 8, "temperature": 0}


@pytest.mark.parametrize("index", range(len(_FORMS)), ids=[form.name for form in _FORMS])
def test_every_documented_request_is_answered(serving: Container, index: int) -> None:
    form = curl_forms(serving.port(5000), serving.port(8000))[index]
    run = subprocess.run(
        [*form.arguments, "--fail", "--max-time", "60"], capture_output=True, text=True, check=True
    )
    assert any(
        word in run.stdout for word in ('"succeeded"', "event: completed", "text_output", "output_ids")
    )


def test_triton_tells_its_metrics(serving: Container) -> None:
    assert "nv_inference_request_success" in httpx.get(f"{serving.url(8002)}/metrics", timeout=300).text


def test_an_engine_that_cog_weights_names_gives_the_same_text(
    runner: Result, serving: Container, engine_tar: Path
) -> None:
    with (
        http_server(engine_tar.parent) as url,
        Container(runner.reference, "--env", f"COG_WEIGHTS={url}/{engine_tar.name}") as other,
    ):
        other.wait_ready()
        answers = [container.predict(_PROMPT) for container in (serving, other)]
    assert [answer["status"] for answer in answers] == ["succeeded", "succeeded"]
    assert "".join(answers[0]["output"]) == "".join(answers[1]["output"]) != ""


def test_any_user_without_rights_can_run_it_and_docker_finds_it_healthy(
    runner: Result, engine_dir: Path
) -> None:
    options = [*WITHOUT_RIGHTS, "--tmpfs", "/home/cog:mode=1777", "--health-interval", "1s"]
    mount = f"{engine_dir}:/src/triton_model_repo/tensorrt_llm/1:ro"
    with Container(runner.reference, *options, "--volume", mount) as container:
        assert container.state()["Health"]["Status"] == "starting"
        container.wait_ready()
        assert container.predict(_PROMPT)["status"] == "succeeded"
        pause = threading.Event()
        for _ in range(600):
            if container.state()["Health"]["Status"] == "healthy":
                break
            pause.wait(0.1)
        assert container.state()["Health"]["Status"] == "healthy"


def test_the_drivers_libraries_are_found_wherever_a_host_has_them(runner: Result, tmp_path: Path) -> None:
    """With CDI they are mounted where the host has them; here another library has their name."""
    folders = (
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/x86_64-linux-gnu/nvidia/current",
        "/usr/lib64",
        "/usr/lib",
        "/usr/lib/wsl/lib",
        "/usr/local/nvidia/lib64",
    )
    library = tmp_path / "libcuda.so.1"
    shutil.copy("/lib/x86_64-linux-gnu/libz.so.1", library)
    options = [
        word
        for index, folder in enumerate(folders)
        for word in ("--volume", f"{library}:{folder}/libcuda-{index}.so.1:ro")
    ]
    script = (
        f"import ctypes; [ctypes.CDLL(f'libcuda-{{index}}.so.1') for index in range({len(folders)})]; "
        "print('found')"
    )
    run = ("run", "--rm", *options, runner.reference)
    for python in ("/opt/serving/bin/python", "/opt/engine/bin/python"):
        assert docker(*run, python, "-c", script) == "found\n"


def test_it_runs_as_kubernetes_runs_it(runner: Result, engine_tar: Path) -> None:
    with (
        http_server(engine_tar.parent) as url,
        Container(
            runner.reference, *run_options(), "--env", f"COG_WEIGHTS={url}/{engine_tar.name}"
        ) as container,
    ):
        container.wait_ready()
        assert container.predict(_PROMPT)["status"] == "succeeded"
        for kind in ("startupProbe", "readinessProbe", "livenessProbe"):
            assert container.execute(*probe(kind)) == "READY\n"
        assert container.execute("id", "-u") == "1000\n"


def test_nothing_gives_rights_and_only_folders_for_it_are_writable(serving: Container) -> None:
    assert serving.unsafe_paths() == ""


def test_a_killed_engine_leaves_no_zombie_and_comes_back(runner: Result, engine_dir: Path) -> None:
    mount = f"{engine_dir}:/src/triton_model_repo/tensorrt_llm/1:ro"
    with Container(runner.reference, "--volume", mount) as container:
        container.wait_ready()
        (engine,) = _processes(container, "runner.engines.server.main")
        container.execute("sh", "-c", f"kill -9 {engine}")
        pause = threading.Event()
        for _ in range(600):
            if container.predict(_PROMPT)["status"] == "succeeded":
                break
            pause.wait(0.1)
        assert container.predict(_PROMPT)["status"] == "succeeded"
        assert _processes(container, "runner.engines.server.main") != [engine]
        states = container.execute("sh", "-c", "cat /proc/[0-9]*/stat").splitlines()
        assert not [state for state in states if state.rpartition(")")[2].split()[0] == "Z"]


def test_a_stop_is_heard_by_the_server_not_forced(runner: Result, engine_dir: Path) -> None:
    mount = f"{engine_dir}:/src/triton_model_repo/tensorrt_llm/1:ro"
    with Container(runner.reference, "--volume", mount) as container:
        container.wait_ready()
        docker("stop", "--time", "60", container.id)
        assert container.state()["ExitCode"] == 0
        assert "SIGTERM" in container.logs()


def test_a_missing_engine_is_told_by_its_code(runner: Result) -> None:
    with Container(runner.reference) as container:
        pause = threading.Event()
        for _ in range(600):
            if "E1301" in container.logs():
                break
            pause.wait(0.1)
        assert "E1301 EngineNotFound" in container.logs()


def _processes(container: Container, words: str) -> list[int]:
    """Return the ids of the container's processes whose command line holds these words."""
    script = 'for p in /proc/[0-9]*; do echo "${p#/proc/} $(tr "\\0" " " < $p/cmdline)"; done 2> /dev/null'
    lines = container.execute("sh", "-c", script).splitlines()
    return [int(line.split()[0]) for line in lines if words in line and "sh -c" not in line]
