"""A shard that is missing is named by ``plan``, ``build`` and ``serve`` before a download."""

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
from tests.engine.samples import write_files

SAFETENSORS_INDEX, BIN_INDEX = "model.safetensors.index.json", "pytorch_model.bin.index.json"


def index(*shards: str) -> bytes:
    return json.dumps({"weight_map": {f"tensor.{shard}": shard for shard in shards}}).encode()


def files(weights: Mapping[str, bytes]) -> dict[str, bytes]:
    whole = tiny_model.files()
    return {name: whole[name] for name in whole if not name.endswith((".safetensors", ".bin"))} | weights


CASES: dict[str, tuple[dict[str, Any], dict[str, bytes], str]] = {
    "named by the index": (
        {},
        {"a.safetensors": b"", SAFETENSORS_INDEX: index("a.safetensors", "b.safetensors")},
        r"names b\.safetensors",
    ),
    "pickled": (
        {},
        {"pytorch_model-1-of-2.bin": b"", BIN_INDEX: index("x.bin", "pytorch_model-1-of-2.bin")},
        r"names x\.bin",
    ),
    "implied by the numbers": (
        {},
        {f"model-0000{number}-of-000006.safetensors": b"" for number in (2, 4)},
        r"lacks model-00001-of-000006\.safetensors, .*-00003-.*, .*-00005-of-000006\.safetensors and 1 more",
    ),
    "a part of a GGUF file": (
        {"gguf_file": "m-Q8_0-00002-of-00003.gguf"},
        {f"m-{part}-of-00003.gguf": b"" for part in ("Q8_0-00002", "Q8_0-00003", "Q4_0-00001")},
        r"lacks m-Q8_0-00001-of-00003\.gguf;",
    ),
}


def plan(config: Path) -> None:
    list(plan_lines(config))


USES: list[tuple[Callable[[Path], object], str]] = [
    (plan, "vllm"),
    (lambda config: build(config, config.with_suffix(".tar"), report=lambda line: None), "vllm"),
    (lambda config: engine_here(read_config(config), report=lambda line: None), "transformers"),
]


@pytest.mark.parametrize("case", CASES)
def test_it_is_named(tmp_path: Path, hub: HubServer, case: str) -> None:
    keys, weights, expected = CASES[case]
    hub.repositories[MODEL_ID] = Repository(files(weights))
    write_files(tmp_path / "model", files(weights))
    config = tmp_path / "config.yaml"
    for where in ({"model_path": "model"}, {"model_id": MODEL_ID}):
        for use, kind in USES:
            config.write_text(yaml.safe_dump({"engine": kind, **where, **keys}))
            with pytest.raises(ModelUnusable, match=expected):
                use(config)
    assert not [each for each in hub.requests if each.path.endswith((".safetensors", ".bin", ".gguf"))]


def test_an_index_alone_says_that_all_are_missing(tmp_path: Path, hub: HubServer) -> None:
    hub.repositories[MODEL_ID] = Repository(files({SAFETENSORS_INDEX: index("a.safetensors")}))
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"engine": "transformers", "model_id": MODEL_ID}))
    with pytest.raises(WeightFormatMissing, match=f"lacks all files that its {SAFETENSORS_INDEX} names"):
        plan(tmp_path / "config.yaml")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json"])
def test_a_clone_without_git_lfs_is_told(tmp_path: Path, name: str) -> None:
    pointer = b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 1\n"
    write_files(tmp_path / "model", {**tiny_model.files(), name: pointer})
    config = tmp_path / "config.yaml"
    for use, kind in USES:
        config.write_text(yaml.safe_dump({"engine": kind, "model_path": "model"}))
        with pytest.raises(ModelUnusable, match=f"{name} is a Git LFS pointer: run `git lfs pull`"):
            use(config)
