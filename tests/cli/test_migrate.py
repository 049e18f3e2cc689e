"""``cog-triton migrate`` writes what a build makes of an old config; once written, it changes no more."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from builder.config.file import read_config
from builder.trtllm.rules import check
from cli.main import EXIT_FAILED, EXIT_WRONG_INPUT, main

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
def old(tmp_path: Path) -> Path:
    path = tmp_path / "old.yaml"
    path.write_text(OLD)
    return path


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


def test_a_config_for_another_engine_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("engine: transformers\nmodel_id: a/b # mine\n")
    assert main(["migrate", str(path)]) == 0
    assert capsys.readouterr().out == path.read_text()


def test_what_can_not_be_built_is_refused_and_nothing_written(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old.write_text(OLD.replace("hidden_act", "hiden_act"))
    new = old.with_name("new.yaml")
    assert main(["migrate", str(old), "-o", str(new)]) == EXIT_WRONG_INPUT
    assert "E1220 UnknownFlag: build.args.hiden_act" in capsys.readouterr().err
    assert not new.exists()


def test_a_place_that_can_not_be_written_is_an_error_of_one_sentence(
    old: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["migrate", str(old), "-o", str(old.parent / "none" / "new.yaml")]) == EXIT_FAILED
    assert "E2306" in capsys.readouterr().err


def test_a_file_that_is_no_config_is_named_as_it_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("notes.txt").write_text("hello")
    assert main(["migrate", "notes.txt"]) == EXIT_WRONG_INPUT
    assert "The build config notes.txt can't be read: a mapping" in capsys.readouterr().err
