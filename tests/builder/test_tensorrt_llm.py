"""Building TensorRT-LLM engines, with stand-ins for the library and trtllm-build: neither can be installed
here.

The stand-ins check every argument against the flag data and write checkpoints and engines of the real layout.
"""

import json
from pathlib import Path
from typing import Any

import pytest

from builder.conversion.flag_parser import make_parser
from builder.trtllm.flags import CONVERT as CONVERT_PROGRAM
from builder.trtllm.flags import QUANTIZE, flags_of
from errors.build import EngineUnsound, OutOfMemory, ProgramFailed, ProgramMissing
from errors.build_config import (
    BuildGpuMissing,
    InvalidBuildValue,
    ModelTooLarge,
    QuantizationUnsupported,
    ScriptUnavailable,
    SequenceTooLong,
)
from errors.coded_error import CodedError
from tests.builder import tiny_model
from tests.builder.conftest import MODEL_ID
from tests.builder.hub_server import HubServer, Repository
from tests.builder.tensorrt_llm_builds import CONVERT, Args, config, make_machine, run, steps_of
from tests.standins.gpus import make_gpus, without_driver

pytestmark = [
    without_driver,
    pytest.mark.slow,
]


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, repository: Repository) -> Path:
    return make_machine(tmp_path, monkeypatch)


def wrap(machine: Path, program: str, *, before: str = "", after: str = "") -> None:
    """Run more commands of the shell around a program of the engine environment."""
    path = machine / "engine-environment" / "bin" / program
    program_alone = path.read_text().replace("exec ", "")
    path.write_text(program_alone.replace("#!/bin/sh\n", f"#!/bin/sh\n{before}\n") + f"{after}\n")


def test_a_config_becomes_a_flat_engine_tar_with_its_facts(machine: Path, repository: Repository) -> None:
    manifest, content, lines = run(machine, config())
    assert set(manifest.files) == {
        "config.json",
        "rank0.engine",
        "tokenizer.json",
        "tokenizer_config.json",
        "generation_config.json",
    }
    assert (manifest.library.name, manifest.library.version) == ("tensorrt_llm", "0.16.0")
    assert (manifest.engine_kind, manifest.sm, manifest.world_size) == ("tensorrt_llm", 86, 1)
    assert (manifest.dtype, manifest.quantization) == ("float16", None)
    assert (manifest.max_batch_size, manifest.max_seq_len, manifest.revision) == (4, 64, repository.commit)
    assert json.loads(content["config.json"])["build_config"]["plugin_config"]["gemm_plugin"] == "auto"
    assert manifest.build_config["build"] == config()["build"]
    assert steps_of(lines, "check") == ["generated [1, 2, 3, 4, 1, 2, 3, 4]"]


@pytest.mark.needs_mpirun
def test_two_ranks_are_both_there_and_generate_together_where_two_gpus_are(machine: Path) -> None:
    manifest, _, lines = run(machine, config({"tp_size": 2}))
    assert {"rank0.engine", "rank1.engine"} < set(manifest.files)
    assert manifest.world_size == 2
    assert "not tried: the engine runs on 2 GPUs, this machine has 1" in lines
    make_gpus(machine / "gpu", count=2)
    _, _, lines = run(machine, config({"tp_size": 2, "use_parallel_embedding": None}))
    assert steps_of(lines, "check") == ["generated [1, 2, 3, 4, 1, 2, 3, 4]"]


@pytest.mark.parametrize(
    ("convert", "quantization"),
    [
        ({"use_weight_only": True, "weight_only_precision": "int4"}, "W4A16"),
        ({"smoothquant": 0.5, "per_channel": None, "int8_kv_cache": None},
         "W8A8_SQ_PER_CHANNEL_PER_TENSOR_PLUGIN"),
    ],
)  # fmt: skip
def test_the_built_in_converter_quantizes_as_the_script_would(
    machine: Path, convert: Args, quantization: str
) -> None:
    assert run(machine, config(convert))[0].quantization == quantization


def test_quantize_py_calibrates_and_its_checkpoint_is_compiled(machine: Path) -> None:
    args = {"qformat": "int4_awq", "dtype": "float16", "tp_size": 2, "calib_size": 32}
    keys = config(quantize={"script": "quantize.py", "output_dir": "checkpoint", "args": args})
    del keys["convert_to_ft"]
    manifest, content, _ = run(machine, keys)
    assert (manifest.quantization, manifest.world_size) == ("W4A16_AWQ", 2)
    assert json.loads(content["config.json"])["pretrained_config"]["quantization"]["group_size"] == 128


def test_a_script_of_tensorrt_llm_is_run_where_it_lies(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    built_in = Path("builder/conversion/convert_checkpoint.py").read_text()
    script = machine / "TensorRT-LLM" / "examples" / "llama" / "convert_checkpoint.py"
    script.parent.mkdir(parents=True)
    beside = f"import sys; sys.path.append({str(Path('builder/conversion').resolve())!r}); import flag_parser"
    built_in = built_in.replace("import flag_parser", beside)
    script.write_text(built_in.replace("converting rank", "NVIDIA's script converts rank"))
    monkeypatch.setenv("TRTLLM_DIR", str(machine / "TensorRT-LLM"))
    lines = run(machine, config())[2]
    assert steps_of(lines, "convert_to_ft") == ["NVIDIA's script converts rank 0 of 1"]
    lines = run(machine, config(example_name="falcon"))[2]
    assert steps_of(lines, "convert_to_ft") == ["converting rank 0 of 1"]
    script.rename(machine / "outside.py")
    script.symlink_to(machine / "outside.py")  # A link does not lead to a script outside.
    lines = run(machine, config({"use_weight_only": None}))[2]
    assert steps_of(lines, "convert_to_ft") == ["converting rank 0 of 1"]


def test_a_models_own_code_is_kept_from_a_library_that_would_run_it(
    machine: Path, repository: Repository
) -> None:
    known = {**tiny_model.CONFIG, "auto_map": {"AutoConfig": "modeling_tiny.TinyConfig"}}
    repository.files["config.json"] = json.dumps(known).encode()
    seen = machine / "seen.json"
    name = f"models/{MODEL_ID}/config.json"
    wrap(machine, "python", before=f"[ -f {name} ] && cp {name} {seen}")
    run(machine, config())
    assert json.loads(seen.read_text()) == tiny_model.CONFIG


FAILURES: list[tuple[str, type[CodedError], tuple[str, ...]]] = [
    ("fail", ProgramFailed, ("Step build", "exit code 1", "Engine building failed, please check error log")),
    ("die", OutOfMemory, ("Step build", "killed", "out of memory: it needed about 4.0 GiB of memory")),
    (
        "oom",
        OutOfMemory,
        ("Requested amount of GPU memory", "needed about 1.0 GiB of GPU memory", "24.0 GiB"),
    ),
    ("lose-rank", EngineUnsound, ("rank1.engine", "nothing was packed")),
]


@pytest.mark.parametrize(("how", "error", "texts"), FAILURES, ids=[each[0] for each in FAILURES])
def test_a_failing_program_gives_its_code_its_step_and_its_last_lines_and_no_tar(
    machine: Path,
    cache: Path,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    error: type[CodedError],
    texts: tuple[str, ...],
) -> None:
    monkeypatch.setenv("STANDIN_BUILD", how)
    with pytest.raises(error) as caught:
        run(machine, config({"tp_size": 2}))
    assert all(text in caught.value.sentence for text in texts), caught.value
    assert not (machine / "engine.tar").exists()
    assert list((cache / "builds").iterdir()) == []
    assert not list((cache / "build-cache" / "engines").iterdir())
    monkeypatch.delenv("STANDIN_BUILD")
    assert any(line.startswith("checkpoint: reused") for line in run(machine, config({"tp_size": 2}))[2])


def test_a_checkpoint_lacking_a_rank_is_not_compiled(machine: Path) -> None:
    lose = 'case "$1" in *convert_checkpoint.py) rm checkpoint/rank1.safetensors ;; esac'
    wrap(machine, "python", after=lose)
    with pytest.raises(EngineUnsound, match=r"step convert_to_ft wrote.*rank1\.safetensors"):
        run(machine, config({"tp_size": 2}))


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"version": "0.15.0"}, "TensorRT-LLM version is 0.15.0"),
        ({"build_config": {"max_batch_size": 1}}, "max_batch_size is 1, but the config asks for 4"),
        ({"build_config": None}, "no pretrained_config and build_config"),
    ],
)
def test_an_engine_that_is_not_what_was_asked_for_is_not_packed(
    machine: Path, changes: dict[str, Any], problem: str
) -> None:
    code = (
        "import json, pathlib; path = pathlib.Path('engine_outputs/config.json'); "
        f"c = json.loads(path.read_text()); c.update({changes!r}); path.write_text(json.dumps(c))"
    )
    wrap(machine, "trtllm-build", after=f'"$(dirname "$0")/python" -c "{code}"')
    with pytest.raises(EngineUnsound) as caught:
        run(machine, config())
    assert problem in caught.value.sentence


def test_an_engine_without_its_weights_is_not_packed(machine: Path, repository: Repository) -> None:
    wrap(machine, "trtllm-build", after="echo x > engine_outputs/rank0.engine")
    with pytest.raises(EngineUnsound, match=r"rank0\.engine has 2 B, but the weights of a rank take about"):
        run(machine, config())


REFUSED: list[tuple[dict[str, Any], type[CodedError], str]] = [
    (config(build={"max_seq_len": 65}), SequenceTooLong, "64 positions"),
    (config({"use_fp8": None}), QuantizationUnsupported, "SM 86"),
    (config(target={"sm": 90}), BuildGpuMissing, "this one is SM 86"),
    (config(build={"checkpoint_dir": "/etc"}, convert_to_ft={**CONVERT, "output_dir": "/etc"}),
     InvalidBuildValue, "inside /src"),
    (config(build={"checkpoint_dir": "models/x"}, convert_to_ft={**CONVERT, "output_dir": "/src/models/x"}),
     InvalidBuildValue, "outside /src/models"),
    (config({"quant_ckpt_path": "/etc/passwd"}), InvalidBuildValue, "quant_ckpt_path"),
    (config({"meta_ckpt_dir": "./meta"}), ScriptUnavailable, "TRTLLM_DIR"),
]  # fmt: skip


@pytest.mark.parametrize(("keys", "error", "text"), REFUSED)
def test_what_can_not_be_built_is_refused_before_a_byte_of_weights_is_fetched(
    machine: Path, hub: HubServer, keys: dict[str, Any], error: type[CodedError], text: str
) -> None:
    with pytest.raises(error) as caught:
        run(machine, keys)
    assert text in caught.value.sentence
    assert not hub.asked_for("model.safetensors")


def test_a_model_that_fits_no_such_gpu_is_refused_before_its_weights_are_fetched(
    machine: Path, hub: HubServer, repository: Repository
) -> None:
    known = {**tiny_model.CONFIG, "hidden_size": 8192, "num_hidden_layers": 80, "intermediate_size": 28672}
    repository.files["config.json"] = json.dumps(known).encode()
    with pytest.raises(ModelTooLarge, match=r"of weights per GPU as planned, but Stand-in A10 has 24\.0 GiB"):
        run(machine, config())
    assert not hub.asked_for("model.safetensors")


def test_without_a_gpu_or_the_library_nothing_is_fetched(
    machine: Path, hub: HubServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COG_TRITON_ENGINE_PYTHON", "/bin/false")
    with pytest.raises(ProgramMissing, match=r"needs TensorRT-LLM 0\.16\.0 \(/bin/false has none\)"):
        run(machine, config())
    (machine / "gpu" / "nvidia-smi").unlink()
    with pytest.raises(BuildGpuMissing, match="--gpus=all"):
        run(machine, config())
    assert hub.requests == []


def test_what_a_program_reads_beside_the_model_is_found_beside_the_config(machine: Path) -> None:
    lora = machine / "loras" / "mine"
    lora.mkdir(parents=True)
    (lora / "adapter_config.json").write_text("{}")
    seen = machine / "seen.json"
    wrap(machine, "trtllm-build", before=f"cp loras/mine/adapter_config.json {seen}")
    keys = config(build={"lora_plugin": "auto", "lora_dir": "./loras/mine"})
    run(machine, keys)
    assert seen.read_text() == "{}"
    with pytest.raises(InvalidBuildValue, match=r"build\.args\.lora_dir must be a file or folder in"):
        run(machine, config(build={"lora_plugin": "auto", "lora_dir": "./loras/other"}))


@pytest.mark.parametrize("program", [CONVERT_PROGRAM, QUANTIZE])
def test_the_built_in_converter_takes_every_flag_but_those_that_need_the_script(program: str) -> None:
    known = {option for action in make_parser(program)._actions for option in action.option_strings}
    flags = flags_of(program)
    assert {f"--{name}" for name in flags} - known == {
        f"--{name}" for name, flag in flags.items() if flag.needs_script
    }
    assert {"nemo_ckpt_path"} <= {name for name, flag in flags.items() if flag.needs_script}
