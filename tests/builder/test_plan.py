"""A plan tells commands, downloads and sizes, and fetches nothing but the model's config.json."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from builder.plan import plan_lines
from builder.sizes.model_shape import shape_of
from cli.main import main
from engine.machine.gpu import Gpu
from engine.words import count_in_words
from errors.build_config import InvalidBuildValue, ModelTooLarge, SequenceTooLong
from errors.coded_error import CodedError
from errors.requests import InvalidInput
from tests.builder.conftest import MODEL_ID
from tests.builder.hub_server import HubServer, Repository
from tests.builder.sizes.published import LLAMA_2_7B, LLAMA_2_70B
from tests.builder.tensorrt_llm_builds import config


@pytest.fixture(autouse=True)
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide this machine's GPU: the plan tells less without one."""
    monkeypatch.setattr("builder.trtllm.build_host.detected_sm", lambda: None)
    monkeypatch.setattr("builder.plan.visible_gpus", tuple)
    monkeypatch.delenv("TRTLLM_DIR", raising=False)
    monkeypatch.setenv("COG_TRITON_ENGINE_PYTHON", "/engine/bin/python")


def lines_of(folder: Path, keys: dict[str, Any], model: dict[str, Any] | None = None) -> list[str]:
    (folder / "config.yaml").write_text(yaml.safe_dump(keys))
    if model is None:
        return [*plan_lines(folder / "config.yaml")]
    (folder / "model.json").write_text(json.dumps(model))
    return [*plan_lines(folder / "config.yaml", model_config=folder / "model.json")]


def line_of(lines: list[str], name: str) -> str:
    (found,) = (line for line in lines if line.startswith(f"{name} "))
    return " ".join(found.split())


def test_a_plan_tells_the_exact_commands(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, config({"tp_size": 2}), LLAMA_2_7B)
    assert [line for line in lines if "--" in line] == [
        (
            "[4/8] convert_to_ft: /engine/bin/python "
            f"{Path('builder/conversion/convert_checkpoint.py').resolve()} "
            f"--model_dir models/{MODEL_ID} --dtype float16 --tp_size 2 --output_dir checkpoint"
        ),
        (
            "[5/8] build: /engine/bin/trtllm-build --checkpoint_dir checkpoint --gemm_plugin auto "
            "--max_batch_size 4 --output_dir engine_outputs"
        ),
    ]


def test_a_plan_from_a_local_config_json_asks_nobody_and_tells_every_size(
    tmp_path: Path, hub: HubServer
) -> None:
    lines = lines_of(tmp_path, config(target={"sm": 80}), LLAMA_2_7B)
    assert hub.requests == []
    assert (
        line_of(lines, "model") == "model 6.74 billion parameters, 32 layers, 32 heads, 32 of keys and values"
    )
    assert line_of(lines, "weights") == "weights 12.6 GiB to download"
    assert "12.6 GiB of weights per GPU" in line_of(lines, "engine")
    assert "512 KiB per token, 2.0 GiB per sequence of 4096 tokens" in line_of(lines, "KV cache")
    fits = [" ".join(line.split()) for line in lines if line.startswith("fits ")]
    assert re.match(
        r"fits A30 \(24\.0 GiB\): [\d,]+ tokens of KV cache .*, 4 sequences of 4096 tokens", fits[0]
    )
    assert fits[-1].endswith("4 sequences (max_batch_size) of 4096 tokens at once")
    assert re.search(r"memory about 25\.\d GiB", line_of(lines, "convert_to_ft"))
    assert re.search(r"memory about \d\d\.\d GiB.*GPU memory about 1\d\.\d GiB", line_of(lines, "build"))
    assert line_of(lines, "disk").startswith("disk about 50.")


def test_of_a_model_on_the_hub_files_and_sizes_are_told_and_config_json_alone_is_fetched(
    tmp_path: Path, hub: HubServer, repository: Repository
) -> None:
    lines = lines_of(tmp_path, config())
    assert f"at {repository.commit}" in line_of(lines, "download")
    assert any("model.safetensors (22." in line for line in lines)
    assert hub.asked_for("config.json")
    assert not hub.asked_for("model.safetensors")
    assert not hub.asked_for("tokenizer.json")


def test_of_an_embedding_model_the_task_is_told(tmp_path: Path, repository: Repository) -> None:
    repository.files["modules.json"] = b"[]"
    lines = lines_of(tmp_path, {"model_id": MODEL_ID})
    assert line_of(lines, "task") == "task embeddings, at /v1/embeddings"
    assert not any("KV cache" in line for line in lines)


def test_without_the_hub_one_line_tells_what_is_missing_and_the_command_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config()))
    assert main(["plan", str(tmp_path / "config.yaml")]) == 1
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    (unknown,) = (line for line in lines if line.startswith("not known"))
    assert unknown.endswith("give the model's config.json with --model-config")
    assert len(lines) == 9
    (error,) = printed.err.splitlines()
    assert error.startswith("E2301 DownloadFailed")
    assert "http://127.0.0.1:9" in error


def test_a_model_in_a_tar_is_not_fetched_for_a_plan(tmp_path: Path) -> None:
    keys = {"engine": "transformers", "model_tar_url": "http://127.0.0.1:9/model.tar"}
    assert "the model is in a tar" in lines_of(tmp_path, keys)[-1]
    assert line_of(lines_of(tmp_path, keys, LLAMA_2_7B), "weights") == "weights 12.6 GiB (float16)"


def test_other_kinds_tell_what_they_have_sizes_of(tmp_path: Path, repository: Repository) -> None:
    lines = lines_of(tmp_path, {"model_id": MODEL_ID})
    cache = line_of(lines, "KV cache")
    assert cache == "KV cache 64 B per token, 4.0 KiB per sequence of 64 tokens (float32)"
    parts = r"weights as float32 .*, torch and the runner 1.0 GiB; .* up to .* for .* tokens of KV cache"
    assert re.search(parts, line_of(lines, "memory"))
    one = lines_of(tmp_path, {"model_id": MODEL_ID, "max_batch_size": 1})
    assert "for 64 tokens of KV cache" in line_of(one, "memory")
    paced = lines_of(tmp_path, {"engine": "paced", "model_id": MODEL_ID, "paced": {"tokens_per_second": 1}})
    assert not any("safetensors" in line for line in paced)


def test_the_image_that_serves_the_engine_on_this_gpu_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.plan.visible_gpus", lambda: (Gpu(103, "NVIDIA B300"),))
    lines = lines_of(tmp_path, {"engine": "vllm", "model_id": MODEL_ID}, LLAMA_2_7B)
    assert line_of(lines, "image") == "image cog-triton-runner-vllm-103 for NVIDIA B300 (SM 103)"
    lines = lines_of(tmp_path, config({}), LLAMA_2_7B)
    assert line_of(lines, "image") == "image no cog-triton-runner image for NVIDIA B300 (SM 103)"
    lines = lines_of(
        tmp_path, {"engine": "tensorrt_llm", "backend": "pytorch", "model_id": MODEL_ID}, LLAMA_2_7B
    )
    assert line_of(lines, "image").startswith("image cog-triton-runner-tensorrt-llm-pytorch-103 for ")


def test_a_model_of_an_unknown_kind_is_said_to_be_estimated(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, config(), {**LLAMA_2_7B, "model_type": "brand_new"})
    assert "counted as Llama-like: brand_new is not known" in line_of(lines, "model")
    lines = lines_of(tmp_path, {"model_id": "a"}, {**LLAMA_2_7B, "model_type": "jamba"})
    assert "config.json does not tell those of jamba models; leave out --model-config" in lines[-1]
    lines = lines_of(tmp_path, config(), {"model_type": "mamba", "hidden_size": 8})
    assert lines[-1] == "sizes are not known: the model's config.json has no num_hidden_layers"


def test_the_files_of_an_unknown_model_tell_its_parameters(
    tmp_path: Path, hub: HubServer, repository: Repository
) -> None:
    values = json.loads(repository.files["config.json"])
    repository.files["config.json"] = json.dumps({**values, "model_type": "jamba"}).encode()
    repository.files["model.safetensors"] = bytes(3_000_000)
    told = {"id": MODEL_ID, "sha": repository.commit, "safetensors": {"parameters": {"BF16": 1}, "total": 1}}
    files = [{"rfilename": name, "size": len(content)} for name, content in repository.files.items()]
    repository.listing = json.dumps({**told, "siblings": files}).encode()
    lines = lines_of(tmp_path, {"engine": "vllm", "model_id": MODEL_ID})
    assert line_of(lines, "model").startswith("model 1.5 million parameters, ")
    assert line_of(lines, "KV cache").endswith(", counted as Llama-like")


@pytest.mark.parametrize(
    "told", [{"max_position_embeddings": 10**400}, {"quantization_config": {"bits": 10**400}}]
)
def test_numbers_that_no_model_has_are_left_out(tmp_path: Path, told: dict[str, Any]) -> None:
    lines = lines_of(tmp_path, {"engine": "vllm", "model_id": "a"}, {**LLAMA_2_7B, **told})
    assert line_of(lines, "model").startswith("model 6.74 billion parameters, ")


@pytest.mark.parametrize("parameters", [{"BF16": 1}, None])
def test_what_the_hub_tells_of_safetensors_is_not_told_of_pickled_weights(
    tmp_path: Path, hub: HubServer, repository: Repository, parameters: dict[str, int] | None
) -> None:
    values = json.loads(repository.files["config.json"])
    count = shape_of(values).num_parameters
    repository.files["pytorch_model.bin"] = bytes(4 * count)
    told = {"id": MODEL_ID, "sha": repository.commit, "safetensors": {"parameters": parameters, "total": 1}}
    files = [{"rfilename": name, "size": len(content)} for name, content in repository.files.items()]
    repository.listing = json.dumps({**told, "siblings": files}).encode()
    lines = lines_of(tmp_path, {"engine": "vllm", "model_id": MODEL_ID, "weight_format": "bin"})
    assert line_of(lines, "model").startswith(f"model {count_in_words(count)} parameters, ")


def test_of_a_model_with_images_the_text_is_counted(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, {"model_id": "a"}, {"model_type": "llava", "text_config": LLAMA_2_7B})
    assert line_of(lines, "model").endswith("32 layers, without its parts for images and other media")


IMPOSSIBLE: list[tuple[dict[str, Any], dict[str, Any], type[CodedError], str]] = [
    (config(target={"sm": 86}), LLAMA_2_70B, ModelTooLarge, "takes 128 GiB of weights per GPU as planned"),
    (config(build={"max_seq_len": 4097}), LLAMA_2_7B, SequenceTooLong, "4096 positions"),
    ({"model_id": "a", "max_seq_len": 4097}, LLAMA_2_7B, InvalidBuildValue, "at most 4096"),
]


@pytest.mark.parametrize(("keys", "model", "error", "text"), IMPOSSIBLE)
def test_an_impossible_plan_is_refused(
    tmp_path: Path, keys: dict[str, Any], model: dict[str, Any], error: type[CodedError], text: str
) -> None:
    with pytest.raises(error) as caught:
        lines_of(tmp_path, keys, model)
    assert text in caught.value.sentence


def test_what_is_split_fits_the_larger_gpus_alone(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, config({"tp_size": 4}, target={"sm": 86}), LLAMA_2_70B)
    fits = [line for line in lines if line.startswith("fits ")]
    assert any(re.search(r"A40.*tokens of KV cache", line) for line in fits)
    assert any(line.endswith("no, the weights are too large") for line in fits)


@pytest.mark.parametrize(
    ("scaling", "limit"),
    [({"type": "linear", "factor": 2.0}, 8192), ({"rope_type": "llama3", "factor": 8.0}, 4096)],
)
def test_scaled_positions_count(tmp_path: Path, scaling: dict[str, Any], limit: int) -> None:
    model = {**LLAMA_2_7B, "rope_scaling": scaling}
    assert any(f"per sequence of {limit} tokens" in line for line in lines_of(tmp_path, config(), model))
    with pytest.raises(SequenceTooLong):
        lines_of(tmp_path, config(build={"max_seq_len": limit + 1}), model)


def test_a_model_config_that_is_none_is_told(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config()))
    for name, content in (("model.json", ""), ("model.json", "[]"), ("model.json", "{"), ("none.json", "")):
        (tmp_path / "model.json").write_text(content)
        with pytest.raises(InvalidInput, match=r"--model-config must be a model's config\.json"):
            list(plan_lines(tmp_path / "config.yaml", model_config=tmp_path / name))
