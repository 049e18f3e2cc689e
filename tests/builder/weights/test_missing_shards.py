"""A shard that is missing is named by ``plan``, ``build`` and ``serve`` before a download."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.build import build
from builder.config.file import read_config
from builder.engine_here import engine_here
from builder.plan import plan_lines
from errors.build_config import ModelUnusable, WeightFormatMissing
from tests.builder import tiny_model
from tests.builder.conftest import MODEL_ID
from tests.builder.hub_server import HubServer, Repository

SAFETENSORS_INDEX, BIN_INDEX = "model.safetensors.index.json", "pytorch_model.bin.index.json"


def index(*shards: str) -> bytes:
    return json.dumps({"weight_map": {f"tensor.{shard}": shard for shard in shards}}).encode()


def files(weights: Mapping[str, bytes]) -> dict[str, bytes]:
    """The tiny model with other ``weights``."""
    whole = tiny_model.files()
    return {name: whole[name] for name in whole if not name.endswith((".safetensors", ".bin"))} | weights


CASES: dict[str, tuple[dict[str, Any], dict[str, bytes], str]] = {
    "named by the index": (
        {},
        {"a.safetensors": b"", SAFETENSORS_INDEX: index("a.safetensors", "b.safetensors")},
        r"names b\.safetensors",
    ),
    "only one is there": (
        {},
        {
            "model-1-of-2.safetensors": b"",
            SAFETENSORS_INDEX: index("model-1-of-2.safetensors", "c.safetensors"),
        },
        r"names c\.safetensors",
    ),
    "pickled": (
        {},
        {
            "pytorch_model-00001-of-00002.bin": b"",
            BIN_INDEX: index("x.bin", "pytorch_model-00001-of-00002.bin"),
        },
        r"names x\.bin",
    ),
    "implied by the numbers": (
        {},
        {f"model-0000{number}-of-000006.safetensors": b"" for number in (2, 4)},
        r"lacks model-00001-of-000006\.safetensors, .*-00003-.*, .*-00005-of-000006\.safetensors and 1 more",
    ),
    "a part of a GGUF file": (
        {"gguf_file": "m-Q8_0-00002-of-00003.gguf"},
        {
            "m-Q8_0-00002-of-00003.gguf": b"",
            "m-Q8_0-00003-of-00003.gguf": b"",
            "m-Q4_0-00001-of-00003.gguf": b"",
        },
        r"lacks m-Q8_0-00001-of-00003\.gguf;",
    ),
}


def plan(config: Path) -> None:
    list(plan_lines(config))


def build_tar(config: Path) -> None:
    build(config, config.with_suffix(".tar"), report=lambda line: None)


def serve(config: Path) -> None:
    engine_here(read_config(config), report=lambda line: None)


@pytest.mark.parametrize(("use", "kind"), [(plan, "vllm"), (build_tar, "vllm"), (serve, "transformers")])
@pytest.mark.parametrize("place", ["folder", "hub"])
@pytest.mark.parametrize("case", CASES)
def test_it_is_named(
    tmp_path: Path, hub: HubServer, case: str, kind: str, place: str, use: Callable[[Path], None]
) -> None:
    keys, weights, expected = CASES[case]
    hub.repositories[MODEL_ID] = Repository(files(weights))
    (tmp_path / "model").mkdir()
    for name, content in files(weights).items():
        if "/" not in name:
            (tmp_path / "model" / name).write_bytes(content)
    where = {"model_path": "model"} if place == "folder" else {"model_id": MODEL_ID}
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"engine": kind, **where, **keys}))
    with pytest.raises(ModelUnusable, match=expected):
        use(config)
    assert not [each for each in hub.requests if each.path.endswith((".safetensors", ".bin", ".gguf"))]


def test_an_index_alone_says_that_all_are_missing(tmp_path: Path, hub: HubServer) -> None:
    hub.repositories[MODEL_ID] = Repository(files({SAFETENSORS_INDEX: index("a.safetensors")}))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"engine": "transformers", "model_id": MODEL_ID}))
    with pytest.raises(WeightFormatMissing, match=f"lacks all files that its {SAFETENSORS_INDEX} names"):
        plan(tmp_path / "config.yaml")
