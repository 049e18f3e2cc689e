"""What sentence-transformers' files say of an embedding model."""

from pathlib import Path
from typing import Any

import pytest

from engine.pooling import pooling_names, read_pooling
from errors.engine_tar import PoolingUnsupported
from tests.engine.pooling_files import write, write_pooling

SIZE = {"embedding_dimension": 3}


@pytest.mark.parametrize("mode", ["mean_tokens", "cls_token", "lasttoken"])
def test_pooling_is_that_of_the_files(tmp_path: Path, mode: str) -> None:
    config = {"max_position_embeddings": 512, "hidden_size": 3}
    pooling = read_pooling(write_pooling(tmp_path, mode, 7, max_tokens=256, config=config))
    assert mode.startswith(pooling.mode)
    assert (pooling.is_normalized, pooling.size, pooling.max_tokens) == (True, 7, 256)
    assert [pooling.limit(tokens) for tokens in (100, 512)] == [100, 256]


def test_newer_files_have_other_names(tmp_path: Path) -> None:
    prefix = "sentence_transformers.sentence_transformer.modules"
    write(tmp_path / "modules.json", [{"type": f"{prefix}.pooling.Pooling", "path": "1_Pooling"}])
    write(tmp_path / "1_Pooling" / "config.json", {"embedding_dimension": 9, "pooling_mode": "cls"})
    write(tmp_path / "config.json", {})
    pooling = read_pooling(tmp_path)
    assert (pooling.mode, pooling.size, pooling.is_normalized, pooling.max_tokens) == ("cls", 9, False, None)


@pytest.mark.parametrize(
    ("config", "allowed"),
    [
        ({}, {8}),
        ({"is_matryoshka": True}, set(range(1, 9))),
        ({"matryoshka_dimensions": [2, 4]}, {2, 4, 8}),
        ({"matryoshka_dimensions": []}, {8}),
    ],
)
def test_which_sizes_a_model_allows(tmp_path: Path, config: dict[str, Any], allowed: set[int]) -> None:
    pooling = read_pooling(write_pooling(tmp_path, size=8, config=config))
    assert {size for size in range(-1, 20) if pooling.allows(size)} == allowed


def test_a_model_without_modules_generates(tmp_path: Path) -> None:
    write(tmp_path / "1_Pooling" / "config.json", {})
    assert read_pooling(tmp_path) is None
    assert pooling_names(["config.json", "1_Pooling/config.json"]) == []


def test_which_files_belong_to_pooling() -> None:
    names = ["modules.json", "1_Pooling/config.json", "sentence_xlm-roberta_config.json"]
    others = ["config.json", "onnx/config.json", "2_Dense/model.safetensors", "a/1_Pooling/config.json"]
    assert pooling_names([*others, *names]) == names


MODULES, POOLING = "modules.json", "1_Pooling/config.json"
UNSUPPORTED: list[tuple[str, object, str]] = [
    (MODULES, [{"type": f"x.{name}"} for name in ("Transformer", "Pooling", "Dense")], "module Dense"),
    (MODULES, [{"type": "x.Transformer"}], "no Pooling"),
    (MODULES, {"type": 3}, "no Pooling"),
    (MODULES, [{"type": "x.Pooling", "path": "../../etc"}], "path '../../etc'"),
    (POOLING, {"pooling_mode_max_tokens": True, **SIZE}, "max pooling"),
    (POOLING, {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True, **SIZE}, "cls and mean"),
    (POOLING, [], "not a JSON object"),
    (POOLING, {"pooling_mode": "mean", "embedding_dimension": "x"}, "word_embedding"),
    ("sentence_bert_config.json", "x", "not a JSON object"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "document", "told"), UNSUPPORTED)
def test_what_can_not_be_served_is_told(tmp_path: Path, name: str, document: object, told: str) -> None:
    write_pooling(tmp_path, config={"max_position_embeddings": 5})
    write(tmp_path / name, document)
    with pytest.raises(PoolingUnsupported, match=told):
        read_pooling(tmp_path)


def test_a_file_that_is_missing_or_no_json_is_told(tmp_path: Path) -> None:
    write_pooling(tmp_path, config={})
    (tmp_path / "1_Pooling" / "config.json").write_text("{")
    with pytest.raises(PoolingUnsupported, match="not JSON"):
        read_pooling(tmp_path)
    (tmp_path / "1_Pooling" / "config.json").unlink()
    with pytest.raises(PoolingUnsupported, match="no such file"):
        read_pooling(tmp_path)
