"""``serve MODEL``: what a name stands for, whether it fits here, an engine without a copy of the weights."""

import json
from pathlib import Path
from typing import Any

import pytest

from builder.config.file import ConfigFile, checked_config
from builder.engine_here import engine_here
from builder.model_source import find_source
from builder.plan import plan_lines
from builder.sizes.memory import weight_bytes
from builder.sizes.model_shape import shape_of
from builder.sizes.precision import stored_precision
from builder.survey import Survey
from engine.inspect import read_manifest, verify
from engine.machine.gpu import Gpu
from engine.words import in_words
from errors.build import DownloadFailed
from errors.build_config import ModelDoesNotFit, ModelUnusable
from errors.machine import GpuRequired
from errors.requests import InvalidInput
from tests.builder import tiny_model
from tests.builder.conftest import MODEL_ID
from tests.builder.gguf import gguf_models
from tests.builder.hub_server import HubServer, Repository
from tests.builder.sizes.published import GPT_OSS_20B, LLAMA_3_8B, LLAMA_3_70B
from tests.engine.samples import write_files

GIB = 1 << 30


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[Gpu]:
    """Return the GPUs of this machine: none, unless a test adds some."""
    found: list[Gpu] = []
    for module in (
        "builder.engine_here",
        "builder.machine_fit",
        "builder.model_source",
        "builder.sizes.size_lines",
    ):
        monkeypatch.setattr(f"{module}.visible_gpus", lambda: tuple(found))
    return found


def source(text: str, kind: str | None = None) -> ConfigFile:
    file = find_source(text, kind=kind)
    assert file is not None
    return file


def made(text: str, kind: str | None = None) -> tuple[Path, list[str]]:
    lines: list[str] = []
    return engine_here(source(text, kind), report=lines.append), lines


def test_a_models_name_becomes_an_engine_whose_weights_are_the_downloaded_file(
    cache: Path, hub: HubServer, repository: Repository
) -> None:
    engine, lines = made(MODEL_ID)
    (blob,) = (
        path for path in (cache / "hub").rglob("blobs/*") if path.samefile(engine / "model.safetensors")
    )
    assert blob.stat().st_nlink == 2
    manifest = verify(engine)
    assert (manifest.engine_kind, manifest.model_id) == ("transformers", MODEL_ID)
    assert manifest.revision == repository.commit
    table = [line.split()[0] for line in lines[: [line[:1] for line in lines].index("[")]]
    assert table == ["model", "engine", "weights", "memory", "download", "disk"]


def test_a_second_start_downloads_nothing_and_says_nothing(hub: HubServer, repository: Repository) -> None:
    first, _ = made(MODEL_ID)
    hub.requests.clear()
    assert made(MODEL_ID) == made(f"{MODEL_ID}@{repository.commit}") == (first, [])
    assert not hub.asked_for("model.safetensors")


def test_without_the_hub_what_was_downloaded_before_is_served(
    hub: HubServer, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = made(MODEL_ID)
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    again, (line,) = made(MODEL_ID)
    assert again == first
    assert "serving what was downloaded before" in line
    with pytest.raises(DownloadFailed):
        made("acme/other")


def test_a_folder_of_the_hubs_own_cache_is_taken_by_its_links(tmp_path: Path) -> None:
    blobs = write_files(tmp_path / "models--acme--tiny" / "blobs", tiny_model.files())
    snapshot = blobs.parent / "snapshots" / ("a" * 40)
    snapshot.mkdir(parents=True)
    for blob in blobs.iterdir():
        (snapshot / blob.name).symlink_to(f"../../blobs/{blob.name}")
    (tmp_path / "link").symlink_to(snapshot)
    engine, _ = made(str(snapshot))
    assert read_manifest(engine).model_id == "acme/tiny"
    assert (engine / "model.safetensors").samefile(blobs / "model.safetensors")
    assert read_manifest(made(str(tmp_path / "link"))[0]).model_id == "link"


@pytest.mark.slow
def test_weights_on_another_disk_are_linked(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def link(*arguments: object) -> None:
        raise OSError(18, "Invalid cross-device link")

    monkeypatch.setattr("os.link", link)
    engine, _ = made(str(model))
    assert (engine / "model.safetensors").is_symlink()
    verify(engine)
    (model / "model.safetensors").unlink()
    with pytest.raises(Exception, match="weights"):
        made(str(model))


def test_what_names_an_engine_or_nothing_is_no_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_files(tmp_path / "engine", {**tiny_model.files(), "engine_args.json": b"{}"})
    (tmp_path / "engine.tar").touch()
    urls = ("https://huggingface.co/a/b/resolve/main/e.tar", "http://h/e.tar")
    for name in (*urls, "engine.tar", "none.tar", "./none", "engine", "none.gguf"):
        assert find_source(name) is None


@pytest.mark.parametrize(
    ("page", "found"),
    [
        ("https://huggingface.co/Org/Name", ("Org/Name", "main", None)),
        ("hf.co/gpt2", ("gpt2", "main", None)),
        ("https://huggingface.co/Org/Name/tree/refs%2Fpr%2F1", ("Org/Name", "refs/pr/1", None)),
        ("https://huggingface.co/Org/Name/blob/v1/q/x.gguf?download=true", ("Org/Name", "v1", "q/x.gguf")),
        ("https://huggingface.co/Org/Name?show_file_info=x.gguf", ("Org/Name", "main", "x.gguf")),
        ("https://huggingface.co/Org/Name/blob/main/model.safetensors#L1", ("Org/Name", "main", None)),
    ],
)
def test_a_page_of_the_hub_names_its_model(page: str, found: tuple[str, str, str | None]) -> None:
    config = source(page).config
    assert (config.model_id, config.revision, config.gguf_file) == found


@pytest.mark.parametrize("page", ["https://huggingface.co/datasets/a/b", "https://hf.co/a/b/tree/main/onnx"])
def test_a_page_of_the_hub_that_is_no_models_is_refused(page: str) -> None:
    with pytest.raises(InvalidInput, match="the page of a model"):
        find_source(page)


def test_an_engine_that_needs_a_gpu_is_refused_at_once_without_one(gpus: list[Gpu], hub: HubServer) -> None:
    with pytest.raises(GpuRequired):
        engine_here(source(MODEL_ID, "vllm"))
    assert not hub.requests


def test_a_build_config_is_taken_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("engine: paced\nmodel_id: a/b\npaced: {tokens_per_second: 1}\n")
    assert source(str(tmp_path / "c.yaml")).config.engine_kind == "paced"


def test_several_gguf_files_are_named(tmp_path: Path) -> None:
    write_files(tmp_path / "m", {"a.gguf": b"", "b.gguf": b""})
    with pytest.raises(ModelUnusable, match=r"m/a\.gguf"):
        find_source(str(tmp_path / "m"))


@pytest.mark.parametrize(
    ("count", "version", "kind"), [(0, "1", "transformers"), (1, "1", "vllm"), (1, None, "transformers")]
)
def test_vllm_is_chosen_where_there_is_a_gpu_and_its_environment(
    gpus: list[Gpu], monkeypatch: pytest.MonkeyPatch, count: int, version: str | None, kind: str
) -> None:
    gpus += [Gpu(90)] * count
    monkeypatch.setattr("builder.model_source.installed_version", lambda python: lambda name: version)
    assert source(MODEL_ID).config.engine_kind == kind
    assert source(MODEL_ID, "transformers").config.engine_kind == "transformers"


def test_a_model_that_is_too_large_for_the_memory_is_refused_before_its_download(
    hub: HubServer, repository: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builder.sizes.fit.ram_here_bytes", lambda: GIB // 2)
    with pytest.raises(ModelDoesNotFit, match="512 MiB"):
        made(MODEL_ID)
    assert not hub.asked_for("model.safetensors")


LONG = {"max_position_embeddings": 131072}


def test_of_a_gguf_file_the_header_tells_whether_the_model_fits(
    cache: Path, hub: HubServer, repository: Repository, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = gguf_models.write(tmp_path / "m.gguf").read_bytes()
    repository.files["m.gguf"] = written
    monkeypatch.setattr("builder.sizes.fit.ram_here_bytes", lambda: GIB // 2)
    with pytest.raises(ModelDoesNotFit, match="512 MiB"):
        made(f"{MODEL_ID}:m.gguf")
    assert not [*cache.glob("hub/*/blobs/*")]
    lines = [*plan_lines(source(f"{MODEL_ID}:m.gguf"))]
    assert any("KV cache" in line for line in lines)
    assert any(f"{in_words(len(written))} for the download" in line for line in lines)


def test_a_gguf_file_is_run_as_it_is_where_there_is_no_gpu(
    tmp_path: Path, gpus: list[Gpu], monkeypatch: pytest.MonkeyPatch
) -> None:
    installed = ["xllamacpp"]
    monkeypatch.setattr(
        "builder.model_source.installed_version",
        lambda python: lambda name: "1" if name in installed else None,
    )
    file = gguf_models.write(tmp_path / "m.gguf")
    engine, lines = made(str(file))
    assert read_manifest(engine).engine_kind == "llama_cpp"
    assert (engine / "model.gguf").samefile(file)
    assert any(line.startswith("disk ") and " 0 B of " in line for line in lines)
    assert source(MODEL_ID).config.engine == "transformers"
    installed.clear()
    assert source(str(file)).config.engine == "transformers"
    installed += ["xllamacpp", "vllm"]
    gpus.append(Gpu(90, "H", 80 * GIB, 80 * GIB))
    assert source(str(file)).config.engine == "vllm"
    installed.remove("vllm")
    assert source(str(file)).config.engine == "transformers"


def test_a_gguf_file_of_the_hub_that_is_none_is_named(hub: HubServer, repository: Repository) -> None:
    repository.files["m.gguf"] = b"<html>" * 100
    with pytest.raises(ModelUnusable, match=r"m\.gguf is not a GGUF file"):
        made(f"{MODEL_ID}:m.gguf")


@pytest.mark.parametrize(
    ("values", "count", "size_gib", "free_gib", "expected"),
    [
        (LLAMA_3_8B, 1, 80, 80, (None, None)),
        ({**LLAMA_3_8B, **LONG}, 1, 22.5, 22.5, (None, 25344)),
        (LLAMA_3_70B, 8, 80, 80, ({"tensor_parallel_size": 2}, None)),
        (LLAMA_3_8B, 1, 80, 40, ({"gpu_memory_utilization": 0.5}, None)),
        (LLAMA_3_8B, 1, 16, 16, None),
        (LLAMA_3_70B, 1, 80, 80, None),
        (LLAMA_3_8B, 1, 80, 12, None),
        (GPT_OSS_20B, 1, 22.5, 22.5, (None, None)),
    ],
)  # fmt: skip
def test_gpus_length_and_share_are_chosen_so_that_a_model_fits(
    gpus: list[Gpu],
    tmp_path: Path,
    values: dict[str, Any],
    count: int,
    size_gib: float,
    free_gib: float,
    expected: tuple[dict[str, Any] | None, int | None] | None,
) -> None:
    from builder.machine_fit import fit_here

    gpus += [Gpu(90, "Stand-in", int(size_gib * GIB), int(free_gib * GIB))] * count
    files = {"model.safetensors": weight_bytes(shape_of(values), stored_precision(values))}
    found = Survey("c" * 40, "c" * 40, values, files, 0)
    fit = fit_here(source(MODEL_ID, "vllm"), found, tmp_path)
    if expected is None:
        assert isinstance(fit.problem, ModelDoesNotFit)
    else:
        assert fit.problem is None
        assert (fit.config.vllm, fit.config.max_seq_len) == expected


@pytest.mark.parametrize(
    ("size_gib", "weights", "fits"),
    [
        (12, "12.0 GiB", True),
        (None, "15.0 GiB", True),
        (7.5, "7.5 GiB", True),
        (29.92, "15.0 GiB", True),  # float32
        (60, "60.0 GiB", False),
    ],
)
def test_files_of_weights_have_the_say_over_what_config_json_leaves_out(
    gpus: list[Gpu], tmp_path: Path, size_gib: float | None, weights: str, fits: bool
) -> None:
    from builder.machine_fit import fit_here

    gpus += [Gpu(90, "Stand-in", 24 * GIB, 24 * GIB)]
    files = {"a.safetensors": None if size_gib is None else int(size_gib * GIB), "tokenizer.json": GIB}
    fit = fit_here(source(MODEL_ID, "vllm"), Survey(None, "x", LLAMA_3_8B, files, 0), tmp_path)
    assert fit.rows["weights"].startswith(weights)
    assert (fit.problem is None) == fits


@pytest.mark.parametrize(
    ("arguments", "fewest"),
    [
        ({}, ["no", "no", "number"]),
        ({"quantization": "fp8"}, ["no", "number", "number"]),
        ({"quantization": "mxfp4"}, ["number", "number", "number"]),
        ({"cpu_offload_gb": 60}, ["no", "number", "number"]),
        ({"gpu_memory_utilization": 0.5}, ["no", "no", "no"]),
        ({"max_num_batched_tokens": 65536}, ["no", "no", "no"]),
        ({"kv_cache_memory_bytes": 0}, ["no", "no", "number"]),
        ({"kv_cache_memory_bytes": 30 << 30}, ["no", "no", "no"]),
        ({"enable_lora": True, "max_loras": 16, "max_lora_rank": 64}, ["no", "no", "no"]),
    ],
)
def test_a_plan_takes_the_engines_arguments_into_account(
    tmp_path: Path, arguments: dict[str, Any], fewest: list[str]
) -> None:
    (tmp_path / "model.json").write_text(json.dumps(LLAMA_3_70B))
    keys = {"engine": "vllm", "model_id": MODEL_ID, "vllm": {**arguments, "kv_cache_dtype": "fp8_e4m3"}}
    file = ConfigFile(checked_config(keys), hf_token=None, folder=None, notes=())
    lines = [*plan_lines(file, model_config=tmp_path / "model.json")]
    (row,) = (line.split("GB")[1].split() for line in lines if line.startswith("  48 GB"))
    assert [cell if cell == "no" else "number" for cell in row[:3]] == fewest
    assert any("160 KiB per token, 1.2 GiB per sequence of 8192 tokens (fp8_e4m3)" in line for line in lines)


@pytest.mark.parametrize(
    ("kind", "memory_gib", "verdict"),
    [
        ("vllm", 0, "does not fit here: there is no NVIDIA GPU"),
        ("vllm", 80, "fits here, on 2 x H (80.0 GiB), with room for "),
        ("vllm", 40, "does not fit here, on 2 x H (40.0 GiB)"),
        ("transformers", 80, "does not fit here, on 1 x H (80.0 GiB)"),
        ("transformers", 0, " of this machine's 23.0 GiB: does not fit here"),
    ],
)
def test_a_plan_has_a_verdict_for_this_machine(
    tmp_path: Path, gpus: list[Gpu], monkeypatch: pytest.MonkeyPatch, kind: str, memory_gib: int, verdict: str
) -> None:
    if memory_gib:
        gpus += [Gpu(90, "H", memory_gib * GIB, memory_gib * GIB)] * 2
    monkeypatch.setattr("builder.sizes.fit.ram_here_bytes", lambda: 23 * GIB)
    (tmp_path / "model.json").write_text(json.dumps({**LLAMA_3_70B, **LONG}))
    lines = [*plan_lines(source("meta/llama", kind), model_config=tmp_path / "model.json")]
    (told,) = [line for line in lines if line.startswith("memory ")]
    assert verdict in told


def test_a_plan_has_a_verdict_for_common_gpus(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from cli.main import main

    (tmp_path / "model.json").write_text(json.dumps({**LLAMA_3_70B, **LONG}))
    assert main(["plan", "meta/llama", "--model-config", str(tmp_path / "model.json")]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {
        line.split(" GB")[0].strip(): line.split(" GB")[1].split()
        for line in lines
        if line.startswith("  ") and " GB" in line
    }
    assert rows["24"][:3] == ["no", "no", "no"]
    assert rows["80"][0] == "no"
    assert rows["80"][1].endswith("*")
    assert rows["80"][2].replace(",", "").isdigit()
    assert any("{tensor_parallel_size: 2}, max_seq_len: " in line for line in lines)
    assert any(line.startswith("memory ") and "float32" in line for line in lines)
