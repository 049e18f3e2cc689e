"""What Cog's server leaves of predictions is removed while others are served: what is empty and ours."""

import asyncio
from pathlib import Path
from uuid import uuid4

import pytest

from runner.cog_server.coglet import PREDICTIONS_DIR
from runner.cog_server.prediction_dirs import PredictionDirs
from tests.runner.servers import CogUnderTest, wait_until

ROOT = PREDICTIONS_DIR


def make(root: Path, prediction_id: str) -> Path:
    folder = root / prediction_id
    for part in ("inputs", "outputs"):
        (folder / part).mkdir(parents=True)
    return folder


def put(cog: CogUnderTest, **inputs: object) -> tuple[str, Path]:
    """Return a prediction with an id of its own: how it ended, and its folder, which Cog has made."""
    name = f"test-{uuid4()}"
    document = cog.client.put(f"/predictions/{name}", json={"input": inputs}).json()
    return document["status"], ROOT / name


@pytest.mark.servers
def test_the_real_servers_folders_go_however_a_prediction_ended(cog: CogUnderTest) -> None:
    done, first = put(cog, prompt="hi", max_tokens=2)
    refused, second = put(cog, prompt="hi", prompt_template="{nothing}")
    failed, third = put(cog, prompt="hi " * 100_000, max_tokens=2)
    assert (done, refused, failed) == ("succeeded", "failed", "failed")
    name = f"test-{uuid4()}"
    body = {"input": {"prompt": "hi", "max_tokens": 4000}}
    events = {"Accept": "text/event-stream"}
    with cog.client.stream("PUT", f"/predictions/{name}", json=body, headers=events) as response:
        # NOTE: of one that is cancelled as it begins the folder may stay: coglet's thread ends anywhere.
        lines = response.iter_lines()  # Kept: without it httpx closes the connection, which cancels.
        assert "event: output" in lines
        fourth = ROOT / name
        assert (fourth / "inputs").is_dir()
        assert cog.client.post(f"/predictions/{name}/cancel").status_code == 200
    wait_until(lambda: not any(each.exists() for each in (first, second, third, fourth)))
    assert put(cog, prompt="hi", max_tokens=2)[0] == "succeeded"


async def test_ids_that_lead_elsewhere_are_not_followed(tmp_path: Path) -> None:
    root = tmp_path / "predictions"
    outside = [make(tmp_path, "outside"), make(root, "a/b")]

    folders = PredictionDirs(root)
    for each in ("../outside", str(tmp_path / "outside"), "a/b", "..", ".", "", "never made"):
        folders.ended(each)
    await folders.close()
    assert all((folder / "inputs").is_dir() for folder in outside)


async def test_at_the_end_nothing_is_left_and_a_file_system_that_fails_is_no_error(tmp_path: Path) -> None:
    folder = make(tmp_path, "one")

    async def end(root: Path) -> None:
        folders = PredictionDirs(root, period_s=60)
        folders.open()
        folders.ended("one")
        await folders.close()

    await end(tmp_path / "not there")
    (tmp_path / "a file").touch()
    await end(tmp_path / "a file")
    assert folder.is_dir()
    await end(tmp_path)
    assert not folder.exists()


async def test_they_go_while_the_loop_runs_but_for_one_that_holds_a_file(tmp_path: Path) -> None:
    made = [make(tmp_path, str(number)) for number in range(300)]
    kept = make(tmp_path, "kept") / "inputs" / "file"
    kept.write_text("of somebody")

    folders = PredictionDirs(tmp_path, period_s=0.01)
    folders.open()
    for folder in (kept.parents[1], *made):
        folders.ended(folder.name)
    while any(folder.exists() for folder in made):  # noqa: ASYNC110 - nothing tells us
        await asyncio.sleep(0.01)
    await folders.close()
    assert kept.read_text() == "of somebody"
