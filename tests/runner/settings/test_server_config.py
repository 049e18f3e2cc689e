"""The server configuration YAML of cog-triton, in its newer and its older layout."""

from pathlib import Path

import pytest

from errors.settings import InvalidSetting
from runner.cog_server import launch
from runner.settings.settings import Settings, load_settings

NEWER = """
build: {version: 1, config: https://example.com/build.yaml}
instantiate:
  base_model: cog-triton
  staging_dest: somewhere/else
  weights: https://example.com/engine.tar
  system_prompt: Be brief.
  prompt_template: "[INST] {prompt} [/INST]"
  server:
    preprocessing:
      template: preprocessing/config_template.pbtxt
      output: preprocessing/config.pbtxt
      args: {tokenizer_dir: /engine, tokenizer_type: auto, triton_max_batch_size: 64}
    tensorrt_llm:
      args: {max_queue_delay_microseconds: 100, batching_strategy: inflight_fused_batching}
    ensemble:
"""

OLDER = """
preprocessing:
  args: {triton_max_batch_size: 64}
tensorrt_llm:
  args: {decoupled_mode: True}
tensorrt_llm_bls:
  args: {accumulate_tokens: true}
"""


def load(tmp_path: Path, text: str) -> Settings:
    config = tmp_path / "server.yaml"
    config.write_text(text)
    return load_settings({"COG_TRITON_CONFIG": str(config)})


def test_the_newer_layout_is_read(tmp_path: Path) -> None:
    settings = load(tmp_path, NEWER)
    assert settings.weights == "https://example.com/engine.tar"
    assert settings.system_prompt == "Be brief."
    assert settings.prompt_template == "[INST] {prompt} [/INST]"
    assert settings.server["preprocessing"]["triton_max_batch_size"] == 64
    assert settings.server["tensorrt_llm"]["batching_strategy"] == "inflight_fused_batching"
    assert settings.server["ensemble"] == {}


def test_the_older_layout_is_read(tmp_path: Path) -> None:
    settings = load(tmp_path, OLDER)
    assert settings.server["preprocessing"] == {"triton_max_batch_size": 64}
    assert settings.server["tensorrt_llm"] == {"decoupled_mode": True}
    assert settings.server["tensorrt_llm_bls"] == {"accumulate_tokens": True}


def test_an_empty_file_sets_nothing(tmp_path: Path) -> None:
    assert load(tmp_path, "") == load(tmp_path, "instantiate:\n") == load_settings({})


def test_config_yaml_of_the_working_folder_is_read_unless_another_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.yaml").write_text("system_prompt: here")
    (tmp_path / "other.yaml").write_text("system_prompt: there")
    assert load_settings({}).system_prompt == "here"
    assert load_settings({"COG_TRITON_CONFIG": "other.yaml"}).system_prompt == "there"


UNKNOWN = [
    ("instantiat: {}", "server.yaml", "did you mean 'instantiate'?"),
    ("instantiate: {weigths: x}", "instantiate", "did you mean 'weights'?"),
    ("instantiate: {server: {tensorrt_lm: {}}}", "instantiate.server", "did you mean 'tensorrt_llm'?"),
    ("instantiate: {server: {ensemble: {arg: {}}}}", "instantiate.server.ensemble", "'args'?"),
    ("qwertyuiop: 1", "server.yaml", "one of"),
    ("instantiate: {3: x}", "instantiate", "is 3"),
]
WRONG_KIND = [
    ("- a list", "server.yaml"),
    ("just a text", "server.yaml"),
    ("instantiate: text", "instantiate"),
    ("instantiate: {server: [ensemble]}", "instantiate.server"),
    ("instantiate: {server: {ensemble: 5}}", "instantiate.server.ensemble"),
    ("instantiate: {server: {ensemble: {args: [a]}}}", "instantiate.server.ensemble.args"),
    ("instantiate: {weights: 5}", "instantiate.weights"),
    ("instantiate: {weights: [a, b]}", "instantiate.weights"),
    ("instantiate: {system_prompt: {a: b}}", "instantiate.system_prompt"),
    ("instantiate: {prompt_template: 7}", "instantiate.prompt_template"),
    ("instantiate: {prompt_template: no field}", "PROMPT_TEMPLATE"),
    *((text, "COG_TRITON_CONFIG") for text in ("a: [unclosed", "a: &x [*x]\n\tb: c", "x: 2024-99-99")),
    *((text, "COG_TRITON_CONFIG") for text in ("x: !!bool maybe", "x: [" * 5000, "x: !!timestamp soon")),
]


def test_what_is_unknown_or_of_the_wrong_kind_is_told_with_its_place_and_the_nearest_key(
    tmp_path: Path,
) -> None:
    unknown = [(text, f"a key of {name}", hint) for text, name, hint in UNKNOWN]
    for text, name, hint in [*unknown, *((text, name, "") for text, name in WRONG_KIND)]:
        with pytest.raises(InvalidSetting) as raised:
            load(tmp_path, text)
        assert raised.value.facts["name"] == name
        assert hint in str(raised.value)
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize("text", ["engine: paced", "model_id: a/b\nbuild: {output_dir: x}"])
def test_a_build_config_in_the_working_folder_is_no_server_config(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    unset = load_settings({})
    Path("config.yaml").write_text(text)
    assert load_settings({}) == unset
    assert "COG_TRITON_CONFIG" not in launch.environment("runner", 5000, {})
    with pytest.raises(InvalidSetting):
        load_settings({"COG_TRITON_CONFIG": "config.yaml"})


def test_a_named_file_that_is_missing_or_no_text_is_told(tmp_path: Path) -> None:
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\xfa")
    for path in (tmp_path / "missing.yaml", tmp_path, tmp_path / "bytes.yaml"):
        with pytest.raises(InvalidSetting, match="COG_TRITON_CONFIG") as raised:
            load_settings({"COG_TRITON_CONFIG": str(path)})
        assert str(path) in str(raised.value)
