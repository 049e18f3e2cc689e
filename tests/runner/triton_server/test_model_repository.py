"""The model repository that Triton loads is rendered whole, or not at all with the key's name."""

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from engine.directory import Engine, load
from errors.settings import InvalidSetting
from runner.triton_server.model_repository import MODELS, TEMPLATES, render
from tests.runner.paced_engine import PacedModel
from tests.runner.triton_server.nvidia_contract import INPUTS, OUTPUTS

Overrides = Mapping[str, Mapping[str, object]]


def render_config(engine: Engine, target: Path, overrides: Overrides | None = None) -> dict[str, str]:
    """Each model's config.pbtxt."""
    render(engine, target, overrides=overrides or {})
    return {model: (target / model / "config.pbtxt").read_text() for model in MODELS}


@pytest.fixture
def engine(paced: PacedModel) -> Engine:
    return load(paced.directory)


@pytest.mark.parametrize("model", MODELS)
def test_every_variable_of_a_template_can_be_overridden(engine: Engine, tmp_path: Path, model: str) -> None:
    template = (TEMPLATES / model / "config.pbtxt").read_text()
    given = {"max_tokens_data_type": "TYPE_INT32", "triton_backend": "tensorrtllm", "decoupled_mode": "true"}
    given["encoder_input_features_data_type"] = "TYPE_BF16"
    given |= dict.fromkeys(("exclude_input_in_output", "add_special_tokens", "skip_special_tokens"), "false")
    for number, variable in enumerate(sorted(set(re.findall(r"\$\{(\w+)\}", template)))):
        value = given.get(variable, str(1000 + number))
        config = render_config(engine, tmp_path / "repository", {model: {variable: value}})[model]
        assert value in config, variable


def test_facts_of_the_engine_are_in_it_and_nothing_is_left_to_fill(engine: Engine, tmp_path: Path) -> None:
    config = render_config(engine, tmp_path / "repository")
    assert "${" not in "".join(config.values())
    assert "max_batch_size: 64" in config["ensemble"]
    assert f'"{engine.path}"' in config["tensorrt_llm"]


def test_the_build_configs_batch_size_is_the_engines_unless_the_server_configuration_has_one(
    engine: Engine, tmp_path: Path
) -> None:
    arguments: dict[str, object]
    for size, arguments, expected in ((7, {}, "7"), (7, {"max_batch_size": 9}, "9"), (None, {}, None)):
        built = replace(engine, manifest=engine.manifest.model_copy(update={"max_batch_size": size}))
        rendered = render(built, tmp_path / "repository", overrides={"tensorrt_llm": arguments})
        assert rendered.options.get("max_batch_size") == expected


@pytest.mark.parametrize(("size", "lines"), [(256, []), (257, ["it runs 256"])])
def test_a_batch_size_that_an_earlier_version_built_is_capped_and_the_log_says_so(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str], size: int, lines: list[str]
) -> None:
    facts = {"engine_kind": "llama_cpp", "max_batch_size": size}
    built = replace(engine, manifest=engine.manifest.model_copy(update=facts))
    assert render(built, tmp_path / "repository", overrides={}).options["max_batch_size"] == "256"
    told = capsys.readouterr().err.splitlines()
    assert [line.rpartition("; ")[2] for line in told] == lines
    overrides = {"tensorrt_llm": {"max_batch_size": 3}}
    assert render(built, tmp_path / "repository", overrides=overrides).options["max_batch_size"] == "3"
    assert capsys.readouterr().err == ""


def test_the_engines_options_are_the_slots_parameters_that_are_set(engine: Engine, tmp_path: Path) -> None:
    arguments = {"tokens_per_second": 7, "engine_hang_timeout_s": 0.5, "cancellation_check_period_ms": 9}
    rendered = render(
        engine,
        tmp_path / "repository",
        overrides={"tensorrt_llm": arguments},
        engine_cache_dir=tmp_path / "cache",
        engine_socket=tmp_path / "socket",
    )
    assert not rendered.is_cpp
    assert (rendered.start_timeout_s, rendered.hang_timeout_s) == (1800, 0.5)
    assert rendered.options == {
        "FORCE_CPU_ONLY_INPUT_TENSORS": "no",
        "engine_cache_dir": str(tmp_path / "cache"),
        "gpt_model_type": "inflight_fused_batching",
        "max_batch_size": "64",
        "max_beam_width": "1",
        "tokens_per_second": "7",
    }
    config = (tmp_path / "repository" / "tensorrt_llm" / "config.pbtxt").read_text()
    assert f'"{tmp_path / "socket"}"' in config


@pytest.mark.parametrize(
    ("given", "written"), [(True, "true"), ("True", "true"), ("1", "true"), ("FALSE", "false"), (0, "false")]
)
def test_a_switch_is_written_as_triton_reads_it(
    engine: Engine, tmp_path: Path, given: object, written: str
) -> None:
    overrides = {"tensorrt_llm": {"exclude_input_in_output": given}}
    config = render_config(engine, tmp_path / "repository", overrides)["tensorrt_llm"]
    assert f'key: "exclude_input_in_output" value: {{ string_value: "{written}"' in config


@pytest.mark.parametrize("model", ["ensemble", "preprocessing"])
def test_the_type_of_max_tokens_is_the_same_on_a_requests_way(
    engine: Engine, tmp_path: Path, model: str
) -> None:
    config = render_config(engine, tmp_path / "repository", {model: {"max_tokens_data_type": "TYPE_INT32"}})
    assert "TYPE_UINT32" not in config["ensemble"] + config["preprocessing"]


@pytest.mark.parametrize("model", ["preprocessing", "postprocessing"])
def test_special_tokens_are_skipped_alike_in_prompts_and_answers(
    engine: Engine, tmp_path: Path, model: str
) -> None:
    config = render_config(engine, tmp_path / "repository", {model: {"skip_special_tokens": False}})
    for each in ("preprocessing", "postprocessing"):
        assert 'key: "skip_special_tokens" value: { string_value: "false" }' in config[each]


@pytest.mark.parametrize(
    ("model", "key", "near"),
    [
        ("tensorrt_llm", "kv_cache_free_gpu_memory_fraction", "kv_cache_free_gpu_mem_fraction"),
        ("preprocessing", "tokenizer_directory", "tokenizer_dir"),
        ("ensemble", "max_batch_size", "triton_max_batch_size"),
    ],
)
def test_an_unknown_key_names_the_nearest(
    engine: Engine, tmp_path: Path, model: str, key: str, near: str
) -> None:
    with pytest.raises(InvalidSetting, match=f"did you mean '{near}'") as raised:
        render_config(engine, tmp_path / "repository", {model: {key: 1}})
    assert model in str(raised.value)
    assert key in str(raised.value)


@pytest.mark.parametrize(
    ("model", "key", "value"),
    [
        ("ensemble", "triton_max_batch_size", 0),
        ("ensemble", "triton_max_batch_size", "many"),
        ("ensemble", "triton_max_batch_size", True),
        ("ensemble", "triton_max_batch_size", None),
        ("ensemble", "max_tokens_data_type", "TYPE_FP32"),
        ("tensorrt_llm", "decoupled_mode", "maybe"),
        ("tensorrt_llm", "exclude_input_in_output", "maybe"),
        ("tensorrt_llm", "max_queue_delay_microseconds", -1),
        ("tensorrt_llm", "triton_backend", "onnx"),
        ("tensorrt_llm", "engine_start_timeout_s", "soon"),
        ("tensorrt_llm", "engine_dir", 'a"b'),
        ("tensorrt_llm", "engine_dir", "a\\b"),
        ("tensorrt_llm", "batching_strategy", "V1\n} instance_group [ {"),
        ("preprocessing", "preprocessing_instance_count", "0"),
        ("preprocessing", "add_special_tokens", "yes please"),
        ("postprocessing", "skip_special_tokens", 2),
    ],
)
def test_a_value_that_triton_could_not_read_is_told_by_its_key(
    engine: Engine, tmp_path: Path, model: str, key: str, value: object
) -> None:
    with pytest.raises(InvalidSetting) as raised:
        render_config(engine, tmp_path / "repository", {model: {key: value}})
    assert raised.value.facts["name"] == f"instantiate.server.{model}.args.{key}"


def test_an_engine_folder_whose_name_triton_could_not_read_is_told(engine: Engine, tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match='quo"ted'):
        render_config(replace(engine, path=Path('/engines/quo"ted')), tmp_path / "repository")


@pytest.mark.parametrize("character", ['"', "\\", "\n"])
def test_a_socket_path_that_triton_could_not_read_is_told(
    engine: Engine, tmp_path: Path, character: str
) -> None:
    socket = Path(f"/tmp/run{character}time/engine")
    with pytest.raises(InvalidSetting, match="quotes, backslashes and line breaks"):
        render(engine, tmp_path / "repository", overrides={}, engine_socket=socket)


@pytest.mark.parametrize(
    ("model", "key"),
    [
        ("tensorrt_llm_bls", "accumulate_tokens"),
        ("postprocessing", "postprocessing_instance_count"),
        ("preprocessing", "postprocessing_instance_count"),
    ],
)
def test_a_key_of_the_original_without_a_meaning_here_is_taken_and_told(
    engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str], model: str, key: str
) -> None:
    render_config(engine, tmp_path / "repository", {model: {key: 1}})
    assert f"{model}.{key}" in capsys.readouterr().err


def test_what_was_there_before_is_replaced(engine: Engine, tmp_path: Path) -> None:
    target = tmp_path / "repository"
    (target / "stale_model" / "1").mkdir(parents=True)
    render_config(engine, target)
    assert sorted(path.name for path in target.iterdir()) == sorted((*MODELS, "tensorrt_llm_bls"))


def test_the_engines_place_in_the_source_holds_nothing_of_ours() -> None:
    assert not (TEMPLATES / "tensorrt_llm" / "1").exists()


@pytest.mark.parametrize("model", ["preprocessing", "tensorrt_llm", "postprocessing"])
def test_a_models_entry_point_finds_our_packages_from_anywhere(
    engine: Engine, tmp_path: Path, model: str
) -> None:
    render_config(engine, tmp_path / "repository")
    (tmp_path / "triton_python_backend_utils.py").write_text("")  # Triton's own is inside its server.
    entry = tmp_path / "repository" / model / "1" / "model.py"
    code = f"exec(open({str(entry)!r}).read()); print(TritonPythonModel.__module__)"
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    module = "slot.model" if model == "tensorrt_llm" else f"triton_server.models.{model}"
    assert result.stdout.strip() == f"runner.{module}"


def read_configs(engine: Engine, target: Path, **options: Any) -> dict[str, Any]:
    render(engine, target, overrides={}, **options)
    return {
        folder.name: text_format.Parse((folder / "config.pbtxt").read_text(), model_config_pb2.ModelConfig())
        for folder in target.iterdir()
    }


@pytest.mark.parametrize("model", INPUTS)
def test_each_model_has_the_tensors_of_nvidias(engine: Engine, tmp_path: Path, model: str) -> None:
    config = read_configs(engine, tmp_path / "repository")[model]
    for has, expected in ((config.input, INPUTS[model]), (config.output, OUTPUTS[model])):
        found = {each.name: (model_config_pb2.DataType.Name(each.data_type), list(each.dims)) for each in has}
        assert {name: found.get(name) for name in expected} == expected
    required = {each.name for each in config.input if not each.optional}
    if model != "postprocessing":
        assert required <= {"text_input", "max_tokens", "QUERY", "REQUEST_OUTPUT_LEN"}


@pytest.mark.parametrize("is_cpp", [False, True])
@pytest.mark.parametrize("ensemble", ["ensemble", "tensorrt_llm_bls"])
def test_an_ensemble_maps_only_tensors_that_its_models_have(
    engine: Engine, tmp_path: Path, ensemble: str, is_cpp: bool
) -> None:
    """Triton would not load it."""
    options = {"cpp_backend": tmp_path / "backend"} if is_cpp else {}
    configs = read_configs(engine, tmp_path / "repository", **options)
    for step in configs[ensemble].ensemble_scheduling.step:
        model = configs[step.model_name]
        assert set(step.input_map) <= {each.name for each in model.input}
        assert set(step.output_map) <= {each.name for each in model.output}


def test_nvidias_backend_must_stream(engine: Engine, tmp_path: Path) -> None:
    overrides = {"tensorrt_llm": {"decoupled_mode": False}}
    with pytest.raises(InvalidSetting, match="C\\+\\+ backend"):
        render(engine, tmp_path / "repository", overrides=overrides, cpp_backend=tmp_path / "backend")
    config = render_config(engine, tmp_path / "repository", overrides)["tensorrt_llm"]
    assert "decoupled: false" in config
