"""The build cache: checkpoints and engines of earlier builds of TensorRT-LLM engines."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.build import build
from tests.builder.hub_server import HubServer, Repository
from tests.builder.tensorrt_llm_builds import config, make_machine, run
from tests.standins.gpus import make_gpus, without_driver

pytestmark = [
    without_driver,
    pytest.mark.slow,
]


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: Repository) -> Path:
    return make_machine(tmp_path, monkeypatch)


class TestBuildCache:
    def lines(self, machine: Path, keys: dict[str, Any]) -> list[str]:
        lines = run(machine, keys)[2]
        told = [line for line in lines if line.startswith(("engine: ", "checkpoint: "))]
        return [line.split(" from ")[0] for line in told]

    def test_the_same_build_again_runs_no_program_and_fetches_no_weights(
        self, machine: Path, hub: HubServer, repository: Repository
    ) -> None:
        first, content, _ = run(machine, config())
        count = len(hub.requests)
        del repository.files["model.safetensors"]
        assert self.lines(machine, config()) == ["engine: reused"]
        second, again, lines = run(machine, config({"workers": 2}))
        assert again == {**content, "engine_manifest.json": again["engine_manifest.json"]}
        assert second.files == first.files
        assert not any("| " in line for line in lines)
        assert not any("safetensors" in each for each in map(str, hub.requests[count:]))

    def test_what_differs_is_told_and_a_checkpoint_is_used_for_another_engine(
        self, machine: Path, repository: Repository
    ) -> None:
        none = "built anew (none of acme/tiny was built before)"
        assert self.lines(machine, config()) == [f"engine: {none}", f"checkpoint: {none}"]
        assert self.lines(machine, config(build={"max_batch_size": 8})) == [
            "engine: built anew (config: build.args.max_batch_size was 4, is 8)",
            "checkpoint: reused",
        ]
        make_gpus(machine / "gpu", sm=89)
        assert self.lines(machine, config()) == [
            "engine: built anew (SM was 86, is 89)",
            "checkpoint: reused",
        ]
        old, repository.commit = repository.commit, "d" * 40
        revision = f"built anew (model revision was {old}, is {repository.commit})"
        assert self.lines(machine, config()) == [f"engine: {revision}", f"checkpoint: {revision}"]

    def test_a_damaged_entry_is_made_again(self, machine: Path, cache: Path) -> None:
        run(machine, config())
        (engine,) = (cache / "build-cache" / "engines").glob("*/files/rank0.engine")
        engine.unlink()
        engine.write_bytes(b"half")
        assert [line.partition("(")[2][:3] for line in self.lines(machine, config())] == ["the", ""]
        assert self.lines(machine, config()) == ["engine: reused"]

    def test_it_can_be_switched_off(
        self, machine: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("COG_TRITON_BUILD_CACHE", "off")
        assert self.lines(machine, config()) == [
            "engine: built anew (COG_TRITON_BUILD_CACHE is off)",
            "checkpoint: built anew (COG_TRITON_BUILD_CACHE is off)",
        ]
        assert not (cache / "build-cache").exists()

    def test_builds_of_the_same_at_once_make_it_once(self, machine: Path) -> None:
        (machine / "config.yaml").write_text(yaml.safe_dump(config()))
        lines: list[str] = []
        tars = [machine / "first.tar", machine / "second.tar"]
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(lambda tar: build(machine / "config.yaml", tar, report=lines.append), tars))
        assert tars[0].read_bytes() == tars[1].read_bytes()
        assert len([line for line in lines if line.startswith("build: done")]) == 1
        assert any("waiting for another build" in line for line in lines)
