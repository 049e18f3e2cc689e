"""A build config is refused by a sentence that names key, value and remedy, and never repeats a token."""

from dataclasses import replace
from pathlib import Path

import pytest

from builder.config import file as config_file
from builder.config.file import MAX_CONFIG_BYTES, ConfigFile, parse_config, read_config
from errors.build_config import (
    BuildConfigUnreadable,
    ConflictingBuildKeys,
    InvalidBuildValue,
    UnknownBuildKey,
)
from errors.coded_error import CodedError
from tests.engine.tar_server import Fault, TarServer

TOKEN = "hf_plantedSecret"

MANY_ALIASES = """
a: &a [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
b: &b [*a, *a, *a, *a, *a, *a, *a, *a, *a, *a]
c: &c [*b, *b, *b, *b, *b, *b, *b, *b, *b, *b]
d: [*c, *c, *c, *c, *c, *c, *c, *c, *c, *c]
"""


def parse(text: str | bytes) -> ConfigFile:
    return parse_config(text.encode() if isinstance(text, str) else text, shown="x.yaml", folder=None)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("model_id: a", "transformers"),
        ("engine: vllm\nmodel_id: a", "vllm"),
        ("model_id: a\nquantize: {script: q.py, output_dir: o}", "tensorrt_llm"),
        ("engine: transformers\nbuild: {output_dir: o}", "transformers"),
    ],
)
def test_the_engine_kind_is_the_one_given_else_what_the_programs_tell(text: str, kind: str) -> None:
    assert parse(text).config.engine_kind == kind


def test_a_token_is_taken_out_and_shows_nowhere() -> None:
    file = parse(f"model_id: a\nhf_token: ' {TOKEN}\n'")
    assert file.hf_token.get_secret_value() == TOKEN
    assert TOKEN not in repr(file)
    assert TOKEN not in file.config.model_dump_json()


@pytest.mark.parametrize(
    "text",
    [
        f"hf_token: [{TOKEN}]",
        f"hf_tokn: {TOKEN}",
        f"hf_token: !{TOKEN} x",
        f"hf_token: *{TOKEN}",
        f"hf_token: '{TOKEN}",
        f"build: {{hf_token: {TOKEN}}}",
        TOKEN,
    ],
)
def test_no_error_repeats_a_token(text: str) -> None:
    with pytest.raises(CodedError) as caught:
        parse(text)
    assert TOKEN not in str(caught.value)
    assert TOKEN not in repr(caught.value.facts)


REFUSED: dict[type[CodedError], list[tuple[str | bytes, str]]] = {
    UnknownBuildKey: [
        ("version: 1\ninstantiate: {weights: x}\nbuild: {model_id: a/b}\n", "this is a runner's server YAML"),
        ("ensemble: {args: {}}\ntensorrt_llm: {args: {}}\n", "this is a runner's server YAML"),
        ("model_metadata: {}\nmodel_name: x\ntrt_llm: {build: {}}\n", "this is a Truss config"),
        ('{"architectures": ["A"], "model_type": "a"}', "give the model's folder"),
        ("model_idd: a", "did you mean model_id?"),
        ("hf-token: x", "did you mean hf_token?"),
        ("build: {output-dir: x}", "did you mean output_dir?"),
        ("paced: {tps: 1}", "its keys are tokens_per_second."),
        ("7: 1", "its keys are backend, build, convert_to_ft"),
    ],
    InvalidBuildValue: [
        (
            "engine: transformer",
            "'tensorrt_llm', 'tensorrt_llm_pytorch', 'vllm', 'llama_cpp', 'transformers' or 'paced', but",
        ),
        ("model_id: 3", "model_id must be text (put it in quotes), but is 3"),
        ("model_id: a/b/c", "model_id must be the name of a Hugging Face model"),
        ("revision: 2024-01-01", "revision must be text (put it in quotes)"),
        ("revision: ../x", "revision must be a branch, tag or commit"),
        ("model_path: /etc", "must be a relative path without '..', but is '/etc'"),
        ("model_path: a/../../b", "model_path must be a relative path"),
        ("model_tar_url: https://h/x.tgz", "model_tar_url must be an http(s) URL whose path ends in .tar"),
        ("model_tar_url: file:///etc/x.tar", "model_tar_url must be an http(s) URL"),
        ("version: 2", "version must be 1, but is 2"),
        ("target: {sm: 8.6}", "target.sm must be a whole number, but is 8.6"),
        ("target: {sm: 900}", "target.sm must be at most 130, but is 900"),
        ("max_seq_len: 0", "max_seq_len must be at least 1, but is 0"),
        ("max_batch_size: '3'", "max_batch_size must be a whole number, but is '3'"),
        ("trust_remote_code: 1", "trust_remote_code must be true or false, but is 1"),
        ("paced: {tokens_per_second: -1}", "paced.tokens_per_second must be a number of tokens per second"),
        ("paced: {tokens_per_second: .inf}", "paced.tokens_per_second must be a number"),
        ("paced: 3", "paced must be a mapping, but is 3"),
        ("build: {output_dir: ../o}", "build.output_dir must be a path without '..'"),
        ("build: {output_dir: o, script: /x.py}", "build.script must be a relative path"),
        ("build: {output_dir: o, args: {a: [1]}}", "build.args.a must be text, a number, true, false or"),
    ],
    ConflictingBuildKeys: [
        ("build: {script: build.py}", "lacks build.output_dir"),
        ("model_path: a\nmodel_id: b", "both model_id and model_path; leave out"),
    ],
    BuildConfigUnreadable: [
        ("", "it is empty"),
        ("- a", "it is a list"),
        ("a: b: c", "line 1, column 5"),
        ("a: 1\na: 2", "duplicate key in line 2, column 1"),
        ("a: !!python/object:os.system x", "could not determine a constructor"),
        (b"\xff\xfe\xfa", "not readable YAML text in UTF-8"),
        ("[" * 5000, "not readable YAML"),
        ("a: &a [*a]", "more than 10000 values"),
        (MANY_ALIASES, "more than 10000 values"),
    ],
}


@pytest.mark.parametrize("error", REFUSED)
def test_a_wrong_config_is_refused_with_key_value_and_remedy(error: type[CodedError]) -> None:
    for text, words in REFUSED[error]:
        with pytest.raises(error) as caught:
            parse(text)
        assert words in str(caught.value), text[:40]


def test_a_page_of_the_hub_is_a_models_name() -> None:
    config = parse("model_id: https://huggingface.co/a/b/blob/v1/c.gguf\nrevision: v2").config
    assert (config.model_id, config.revision, config.gguf_file) == ("a/b", "v2", "c.gguf")


def test_a_file_gives_its_folder_and_a_missing_or_huge_one_its_error(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("model_id: a")
    assert read_config(path).folder == tmp_path
    path.write_text("#" * (MAX_CONFIG_BYTES + 1))
    with pytest.raises(BuildConfigUnreadable, match="larger than"):
        read_config(str(path))
    with pytest.raises(BuildConfigUnreadable, match="No such file"):
        read_config(tmp_path / "none.yaml")
    with pytest.raises(BuildConfigUnreadable, match="a folder without a model"):
        read_config(tmp_path)


def test_a_url_is_fetched_and_its_failures_are_told_without_its_credentials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(config_file, "_TRANSFER", replace(config_file._TRANSFER, first_wait_s=0.001))

    with TarServer(b"model_id: a") as server:
        file = read_config(server.url)
        assert (file.config.model_id, file.folder) == ("a", None)
        server.content = b"#" * (MAX_CONFIG_BYTES + 1)
        with pytest.raises(BuildConfigUnreadable, match="larger than"):
            read_config(server.url)
        server.fault = lambda request: Fault(status=404)
        with pytest.raises(BuildConfigUnreadable, match="HTTP 404") as caught:
            read_config(server.url.replace("//", f"//user:{TOKEN}@") + f"?sig={TOKEN}")
        assert TOKEN not in str(caught.value)
    with pytest.raises(BuildConfigUnreadable, match="nothing listens there"):
        read_config(server.url)


def test_a_model_beside_its_config_has_the_name_of_its_folder(tmp_path: Path) -> None:
    folder = tmp_path / "tiny"
    folder.mkdir()
    (folder / "config.yaml").write_text("engine: transformers\nmodel_path: ./\n")
    assert read_config(folder / "config.yaml").model_name == "tiny"
