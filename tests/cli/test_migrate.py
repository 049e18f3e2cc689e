"""``cog-triton migrate`` writes what a build makes of an old config; once written, it changes no more."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from builder.build import OWN_FOLDER
from builder.config.config import BuildConfig
from builder.config.file import parse_config, read_config
from builder.kinds import engine_plan
from builder.trtllm.rules import check
from cli.main import main
from cli.migrate import config_text

OLD = """
model_id: sshleifer/tiny-gpt2
example_name: gpt
hf_token: hf_plantedSecret
convert_to_ft:
  script: hf_gpt_convert.py
  output_dir: ./c-model/gpt2/1-gpu
  args: {in-file: /src/models/sshleifer/tiny-gpt2, out-dir: ./c-model/gpt2, storage-type: float16}
build:
  script: build.py
  output_dir: ./engine_outputs/
  args:
    model_dir: ./c-model/gpt2/1-gpu
    use_gpt_attention_plugin:
    hidden_act: gelu
    max_input_len: 500
    max_output_len: 500
merge: true
"""


@pytest.fixture
def old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("old.yaml").write_text(OLD)
    return Path("old.yaml")


def test_the_file_written_builds_the_same_and_tells_what_changed(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = old.with_name("new.yaml")
    assert main(["migrate", str(old), "-o", str(new)]) == 0
    written, told = new.read_text(), capsys.readouterr().err
    assert "# build.args.use_gpt_attention_plugin: now gpt_attention_plugin auto\n" in written
    assert "# build.args.hidden_act: dropped (read from the checkpoint's config.json)\n" in written
    assert told.splitlines()[-1].split() == ["written", str(new)]
    assert all(note in told for note in read_config(old).notes)
    assert check(read_config(new).config)[0].calls == check(read_config(old).config)[0].calls
    assert read_config(new).notes == ()


def test_migrating_what_was_migrated_gives_it_back_byte_for_byte(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["migrate", str(old)])
    once = capsys.readouterr().out
    again = old.with_name("again.yaml")
    again.write_text(once + "# a comment of mine\n")
    assert main(["migrate", str(again)]) == 0
    printed = capsys.readouterr()
    assert printed.out == once + "# a comment of mine\n"
    assert printed.err == "nothing to change: the config is current\n"


def test_a_token_is_neither_printed_nor_written(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main(["migrate", str(old)])
    printed = capsys.readouterr()
    assert "plantedSecret" not in printed.out + printed.err
    assert printed.out.startswith("# hf_token: removed; set HF_TOKEN or pass the token with the build\n")
    assert "hf_token" not in yaml.safe_load(printed.out)


def test_a_config_for_another_engine_stays_as_it_is(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old.write_text("engine: transformers\nmodel_id: a/b # mine\n")
    assert main(["migrate", str(old)]) == 0
    assert capsys.readouterr().out == old.read_text()


@pytest.mark.parametrize(
    ("text", "destination", "code", "told"),
    [
        (OLD.replace("hidden_act", "hiden_act"), "new.yaml", 2, "E1220 UnknownFlag: build.args.hiden_act"),
        (OLD, "none/new.yaml", 1, "E2306"),
        ("hello", "new.yaml", 2, "The build config old.yaml can't be read: a mapping"),
    ],
)
def test_what_can_not_be_read_built_or_written_is_told_and_nothing_written(
    old: Path, text: str, destination: str, code: int, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    old.write_text(text)
    assert main(["migrate", old.name, "-o", destination]) == code
    assert told in capsys.readouterr().err
    assert not Path(destination).exists()


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text()


@given(st.dictionaries(st.text(), SCALARS), st.text(min_size=1).filter(lambda each: each.isprintable()))
def test_any_config_survives_being_written(args: dict[str, Any], name: str) -> None:
    step = {"script": "x.py", "output_dir": "./" + name.replace("..", "."), "args": args}
    build = {"executable": "trtllm-build", "output_dir": "o", "fit_lengths": True}
    more = {"quantize": step, "build": build, "target": {"gpus": 2}}
    config = BuildConfig.model_validate({"version": 1, "model_id": "a/b", "revision": "1.0", **more})
    text = config_text(config)
    assert parse_config(text.encode(), shown="x", folder=None).config == config


def test_notes_are_comments_on_one_line_each() -> None:
    build = {"output_dir": "o", "args": {"gemm_plugin": "auto", "tp_size": 2}}
    config = BuildConfig.model_validate({"model_id": "a/b", "build": build})
    assert config_text(config, ["build.args.n_head: dropped (the checkpoint has it)", "a\nb: 1"]) == (
        "# build.args.n_head: dropped (the checkpoint has it)\n"
        "# 'a\\nb: 1'\n"
        "version: 1\n"
        "model_id: a/b\n"
        "build:\n"
        "  output_dir: o\n"
        "  args:\n"
        "    gemm_plugin: auto\n"
        "    tp_size: 2\n"
    )


PYTORCH = """
version: 1
model_id: meta-llama/Llama-2-13b-chat-hf
example_name: llama
quantize:
  script: quantize.py
  output_dir: ./checkpoint
  args: {tp_size: 2, dtype: float16, qformat: fp8, kv_cache_dtype: fp8, calib_size: 64}
build:
  executable: trtllm-build
  output_dir: ./engine_outputs
  args: {max_batch_size: 64, max_seq_len: 4096, max_num_tokens: 2048, max_beam_width: 2, gemm_plugin: fp8}
target: {sm: 90, gpus: 2}
"""


def test_a_config_for_a_compiled_engine_becomes_one_for_pytorch_and_tells_what_is_lost(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.yaml", tmp_path / "new.yaml"
    old.write_text(PYTORCH)
    assert main(["migrate", str(old), "--backend", "pytorch", "-o", str(new)]) == 0
    told = capsys.readouterr().err
    written = read_config(new).config
    assert engine_plan(written).config.engine_kind == "tensorrt_llm_pytorch"
    assert written.model_dump(exclude_unset=True) == {
        "version": 1,
        "engine": "tensorrt_llm",
        "backend": "pytorch",
        "model_id": "meta-llama/Llama-2-13b-chat-hf",
        "dtype": "float16",
        "max_seq_len": 4096,
        "max_batch_size": 64,
        "llm_args": {
            "tensor_parallel_size": 2,
            "max_num_tokens": 2048,
            "kv_cache_config": {"dtype": "fp8"},
        },
    }
    for note in (
        "FP8: dropped (name a model that is quantized already, by NVIDIA's ModelOpt)",
        "quantize.args: dropped qformat, calib_size",
        "build.args.max_beam_width: dropped (beam searches are not served)",
        "build.args: dropped gemm_plugin",
        "target: dropped (the engine runs on any GPU that the library supports)",
    ):
        assert note in told
        assert f"# {note}\n" in new.read_text()


def test_old_configs_are_told_of_the_other_backend(old: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["migrate", str(old)]) == 0
    assert "--backend pytorch writes it for TensorRT-LLM 1.x" in capsys.readouterr().err
    assert main(["migrate", str(old), "--backend", "pytorch"]) == 0
    written = yaml.safe_load(capsys.readouterr().out)
    assert written["backend"] == "pytorch"
    assert written["max_seq_len"] == 1000
    assert "hf_plantedSecret" not in str(written)


@pytest.mark.parametrize("example", sorted((OWN_FOLDER / "examples").glob("*/config.yaml")))
def test_the_examples_have_a_form_for_pytorch(example: Path, capsys: pytest.CaptureFixture[str]) -> None:
    kind = read_config(example).config.engine_kind
    assert main(["migrate", str(example), "--backend", "pytorch"]) == 0
    written = capsys.readouterr().out
    if kind == "tensorrt_llm":
        engine_plan(parse_config(written.encode(), shown="it", folder=example.parent).config)
    else:
        assert written == example.read_text()
