"""What the runner must know of a model, from its files or, before them, from the settings."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from engine.directory import Engine
from engine.tar.manifest import Manifest
from errors.coded_error import CodedError
from errors.engine_tar import EngineUnreadable, GenerationConfigInvalid
from errors.settings import InvalidSetting
from errors.triton import TritonTokenizerError
from runner.generation.model import ModelFacts, load_model_facts
from runner.settings.settings import load_settings
from tests.runner.paced_engine import END_ID, make_tokenizer

CONFIG = {"max_position_embeddings": 100}
A, B = (make_tokenizer().token_to_id(text) for text in "ab")


def put(folder: Path, **documents: object) -> Engine:
    """Return an engine of these JSON documents and a tokenizer, without limits in its manifest."""
    make_tokenizer().save(str(folder / "tokenizer.json"))
    for name, document in documents.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    return Engine(folder, Manifest(engine_kind="paced", files={}), ())


def facts(engine: Engine, **environment: str) -> ModelFacts:
    return load_model_facts(engine, load_settings(environment))


def with_limits(engine: Engine, **limits: int) -> Engine:
    return Engine(engine.path, Manifest(engine_kind="paced", files={}, **limits), ())


@pytest.mark.parametrize(
    ("documents", "end_ids"),
    [
        ({"config": CONFIG | {"eos_token_id": 7}}, (7,)),
        ({"config": CONFIG | {"eos_token_id": [7, 8, None, True, -1]}}, (7, 8)),
        ({"config": CONFIG | {"eos_token_id": 7}, "generation_config": {"eos_token_id": [9, 7]}}, (9, 7)),
        ({"config": CONFIG | {"text_config": {"eos_token_id": 7}}}, (7,)),
        ({"config": CONFIG | {"eos_token_id": 7}, "tokenizer_config": {"eos_token": "a"}}, (7, A)),
        ({"config": CONFIG, "tokenizer_config": {"eos_token": {"content": "a"}, "eot_token": "b"}}, (A, B)),
        ({"config": CONFIG, "special_tokens_map": {"eos_token": {"content": "b"}}}, (B,)),
        ({"config": CONFIG, "tokenizer_config": {"eos_token": "<x>"}, "added_tokens": {"<x>": 900}}, (900,)),
        (
            {
                "config": CONFIG | {"eos_token_id": 7},
                "tokenizer_config": {"eos_token": "<x>", "added_tokens_decoder": {"901": {"content": "<x>"}}},
            },
            (7, 901),
        ),
        ({"config": CONFIG, "tokenizer_config": {"eos_token": "<nobody knows>"}}, ()),
        ({"config": CONFIG | {"vocab_size": 400, "eos_token_id": [400, 399]}}, (399,)),
        ({"config": CONFIG}, ()),
    ],
)
def test_end_ids_are_those_of_all_files_and_of_well_known_tokens(
    tmp_path: Path, documents: dict[str, Any], end_ids: tuple[int, ...]
) -> None:
    """The tokenizer's own ``</s>`` is one by its text."""
    engine = put(tmp_path, **documents)
    assert facts(engine).end_ids == (*end_ids, END_ID)
    assert facts(engine, END_ID="5").end_ids == (5,)


def test_sampling_defaults_are_those_of_the_generation_config_unless_they_are_off(tmp_path: Path) -> None:
    engine = put(tmp_path, config=CONFIG, generation_config={"temperature": 0.6, "eos_token_id": 7})
    assert facts(engine).sampling_defaults == {"temperature": 0.6}
    assert facts(engine, GENERATION_CONFIG="none").sampling_defaults == {}
    own = facts(engine, GENERATION_CONFIG='{"temperature": 0.2, "top_p": 0.9}')
    assert own.sampling_defaults == {"temperature": 0.2, "top_p": 0.9}
    invalid = put(tmp_path, config=CONFIG, generation_config={"temperature": -1})
    assert facts(invalid, GENERATION_CONFIG="none").sampling_defaults == {}
    with pytest.raises(GenerationConfigInvalid, match=r"temperature has to be .*GENERATION_CONFIG=none"):
        facts(invalid)


@pytest.mark.parametrize(
    ("special", "others", "ends"),
    [
        (["<|im_end|>", "<|im_start|>"], [], ["<|im_end|>"]),
        ([], ["<|im_end|>"], ["<|im_end|>"]),
        ([], ["<eos>", "[EOT]"], []),
        (["<|end|>", "<|user|>"], [], ["<|end|>"]),
        (["<|start|>", "<|end|>", "<|return|>", "<|call|>"], [], ["<|return|>", "<|call|>"]),
    ],
)
def test_well_known_tokens_end_a_text_and_separators_of_messages_do_not(
    tmp_path: Path, special: list[str], others: list[str], ends: list[str]
) -> None:
    engine = put(tmp_path, config=CONFIG)
    tokenizer = make_tokenizer()
    tokenizer.add_special_tokens(special)
    tokenizer.add_tokens(others)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert facts(engine).end_ids == (*map(tokenizer.token_to_id, ends), END_ID)


def test_without_any_end_token_it_is_that_of_the_original(tmp_path: Path) -> None:
    engine = put(tmp_path, config=CONFIG)
    tokenizer = Tokenizer(WordLevel({"a": 0}, unk_token="a"))
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert facts(engine).end_ids == (2,)


def test_the_pad_id_is_the_models_else_its_end_id(tmp_path: Path) -> None:
    engine = put(tmp_path, config=CONFIG | {"eos_token_id": [7, 8]})
    assert facts(engine).pad_id == 7
    assert facts(engine, END_ID="5").pad_id == 5
    assert facts(engine, PAD_ID="0").pad_id == 0
    assert facts(put(tmp_path, config=CONFIG | {"pad_token_id": 3, "eos_token_id": 7})).pad_id == 3


def test_lengths_come_from_settings_manifest_and_config_in_this_order(tmp_path: Path) -> None:
    engine = put(tmp_path, config=CONFIG)
    assert (facts(engine).max_sequence_length, facts(engine).max_input_length) == (100, 99)
    limited = with_limits(engine, max_seq_len=50)
    assert (facts(limited).max_sequence_length, facts(limited).max_input_length) == (50, 49)
    assert facts(with_limits(engine, max_seq_len=50, max_input_len=20)).max_input_length == 20
    shorter = facts(with_limits(engine, max_seq_len=50, max_input_len=20), MAX_SEQUENCE_LENGTH="10")
    assert (shorter.max_sequence_length, shorter.max_input_length) == (10, 9)


def test_a_tensorrt_llm_config_tells_its_length_one_level_deeper(tmp_path: Path) -> None:
    assert facts(put(tmp_path, config={"pretrained_config": CONFIG})).max_sequence_length == 100


def test_where_nothing_tells_the_length_the_variable_to_set_is_named(tmp_path: Path) -> None:
    engine = put(tmp_path, config={})
    with pytest.raises(InvalidSetting, match="MAX_SEQUENCE_LENGTH must be set"):
        facts(engine)
    assert facts(engine, MAX_SEQUENCE_LENGTH="64").max_sequence_length == 64


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("tokenizer.json", "{", TritonTokenizerError),
        ("tokenizer.json", None, TritonTokenizerError),
        ("config.json", "{", EngineUnreadable),
        ("config.json", "\udcff", EngineUnreadable),
        ("generation_config.json", "[1,", EngineUnreadable),
        ("generation_config.json", "[" * 100_000, EngineUnreadable),
        ("tokenizer_config.json", "", EngineUnreadable),
        ("config.json", None, InvalidSetting),
        ("config.json", "[]", InvalidSetting),
    ],
)
def test_a_file_that_is_damaged_or_missing_is_told(
    tmp_path: Path, name: str, content: str | None, error: type[CodedError]
) -> None:
    engine = put(tmp_path, config=CONFIG)
    if content is None:
        (tmp_path / name).unlink()
    else:
        (tmp_path / name).write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(error):
        facts(engine)


async def test_truncation_and_padding_of_a_tokenizers_training_do_not_touch_prompts(tmp_path: Path) -> None:
    engine = put(tmp_path, config=CONFIG)
    tokenizer = make_tokenizer()
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=64)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    for prompt in ("What is machine learning?", "What is machine learning? " * 1000):
        assert await facts(engine).encode(prompt) == make_tokenizer().encode(prompt).ids
