"""Documents that fuzzing found, each the smallest input that broke a promise: tracebacks and hangs."""

import json
from pathlib import Path

import httpx
import pytest

from builder.config.file import parse_config
from engine.directory import load
from engine.end_ids import tokenizer_end_id
from engine.tar.manifestless import describe
from engine.tensorrt_llm_config import read_compiled_config
from errors.coded_error import CodedError
from errors.requests import InvalidInput
from runner.chat.template import ChatTemplate
from runner.generation.model import load_model_facts
from runner.settings.prompt_template import format_prompt
from runner.settings.settings import load_settings
from tests.fuzz import bodies
from tests.fuzz.engine_documents import _tokenizer
from tests.runner.paced_engine import make_tokenizer

DEEP = b"[" * 100_000


@pytest.mark.parametrize("text", [b"a: !!bool x", b"a: !!timestamp x", b"a: !!int ''", b"!!float ."])
def test_yaml_whose_tagged_values_are_none_is_e1201(text: bytes) -> None:
    with pytest.raises(CodedError, match="E1201"):
        parse_config(text, shown="config.yaml", folder=None)


def test_a_message_is_one_line_and_no_book_whatever_it_quotes() -> None:
    with pytest.raises(CodedError, match="E1202") as unknown:
        parse_config(b'{"engine": "paced", "a\\nFATAL: forged": 1}', shown="config.yaml", folder=None)
    assert "\n" not in str(unknown.value)
    with pytest.raises(CodedError, match="E1004") as half:
        format_prompt("{\udcf5}", prompt="", system_prompt="")
    str(half.value).encode()
    long = InvalidInput(name="prompt", expected="shorter", value="x" * 100_000)
    assert len(str(long)) < 5000


def test_an_old_engines_documents_may_hold_half_characters_and_odd_tags() -> None:
    documents = {
        "config.json": b'{"model_type": "llama", "dtype": "\\ud800"}',
        "cog-trt-llm-config.yaml": b"a: !!bool x",
    }
    found = describe({"model.bin": 1, "tokenizer.json": 1}, documents.get, "engine")
    assert found[0].dtype is None


@pytest.mark.parametrize(
    ("mapping", "length"),
    [('{"tp_size": [1], "pp_size": 1000000000000}', "8"), ("{}", "Infinity"), ("{}", "[" * 100_000)],
    ids=["a list times a number", "infinity", "nested"],
)
def test_a_compiled_config_that_is_none_is_refused(tmp_path: Path, mapping: str, length: str) -> None:
    pretrained = f'{{"mapping": {mapping}, "vocab_size": 5}}'
    build = f'{{"max_seq_len": {length}, "max_batch_size": 1}}'
    text = f'{{"pretrained_config": {pretrained}, "build_config": {build}}}'
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CodedError, match="E13"):
        read_compiled_config(tmp_path)


def test_an_engine_whose_config_has_a_number_in_place_of_an_object_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(_tokenizer)
    (tmp_path / "rank0.engine").write_bytes(b"x")
    (tmp_path / "config.json").write_text('{"model_type": "llama", "pretrained_config": 1}')
    settings = load_settings({"ENGINE_DIR": str(tmp_path)})
    with pytest.raises(CodedError, match="MAX_SEQUENCE_LENGTH"):
        load_model_facts(load(tmp_path), settings)


def test_an_end_token_that_is_half_a_character_is_none(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"eos_token": "\\udcfa"}')
    assert tokenizer_end_id(tmp_path, make_tokenizer()) is None


@pytest.mark.parametrize(
    ("content", "headers"),
    [
        (b'{"prompt": 5, "user": "\\ud800"}', {}),
        (b'{"prompt": 5, ', {}),
        (b'{"prompt": "hi"}', {"content-length": "9" * 5000}),
    ],
    ids=["half a character behind a wrong field", "no end behind a wrong field", "a long content-length"],
)
async def test_a_body_that_is_no_request_is_refused(content: bytes, headers: dict[str, str]) -> None:
    async with httpx.AsyncClient(transport=bodies.transport(), base_url="http://api") as client:
        response = await client.post("/v1/completions", content=content, headers={**bodies.JSON, **headers})
    assert response.status_code in (400, 413)
    assert response.json()["error"]["code"] in ("E1005", "E1600", "E1606")


def test_arguments_of_a_tool_that_are_nested_without_end_are_e1005() -> None:
    call = {"function": {"name": "f", "arguments": DEEP.decode()}}
    messages = json.dumps([{"role": "assistant", "tool_calls": [call]}])
    with pytest.raises(CodedError, match="E1005"):
        ChatTemplate({"default": ""}, {}).render(messages)
