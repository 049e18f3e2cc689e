"""The builder's image makes of a config's URL an engine.tar that can be copied out of its container."""

from pathlib import Path

import pytest

from engine.inspect import verify
from tests.images.container import Container
from tests.images.result import Result

pytestmark = pytest.mark.servers


def test_the_engine_that_comes_out_is_whole_and_of_its_kind(engine_tar: Path) -> None:
    manifest = verify(engine_tar)
    assert manifest.engine_kind == "transformers"
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(manifest.files)


def test_a_config_of_the_image_itself_is_named_by_its_path(builder: Result) -> None:
    with Container(builder.reference) as container:
        container.wait_ready()
        answer = container.predict({"config": "./examples/tiny/config.yaml"})
        assert answer["status"] == "succeeded", answer
        container.execute("test", "-s", "/src/engine.tar")


def test_the_builder_holds_nothing_of_the_runner(builder: Result) -> None:
    assert set(builder.facts["config"]["ExposedPorts"]) == {"5000/tcp"}
    assert "/src/builder/run.py:Runner" in str(builder.facts["config"]["Env"])
