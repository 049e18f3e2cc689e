"""Sampling parameters of generation_config.json are told, and refused where no request may have them."""

import json
from pathlib import Path
from typing import Any

import pytest

from engine.inspect import read_manifest, read_sampling
from engine.sampling_defaults import sampling_defaults
from errors.engine_tar import EngineUnreadable, GenerationConfigInvalid
from tests.engine.samples import FILES, packed, write_files

CONFIG: dict[str, Any] = {
    "do_sample": False,
    "eos_token_id": [1, 2],
    "temperature": 0.6,
    "top_p": None,
    "top_k": 20,
    "repetition_penalty": 1,
    "max_new_tokens": 2048,
}
DEFAULTS = {"temperature": 0.6, "top_k": 20, "repetition_penalty": 1, "max_new_tokens": 2048}


def test_they_are_those_that_a_request_has_too() -> None:
    assert sampling_defaults(CONFIG, "x") == DEFAULTS
    assert sampling_defaults({}, "x") == {}
    assert (
        repr(sampling_defaults({"top_k": 50.0, "temperature": 1}, "x")) == "{'temperature': 1.0, 'top_k': 50}"
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", 2.5), ("temperature", "0.6"), ("top_p", True), ("top_k", 0.5), ("min_p", -1)],
)
def test_a_value_that_no_request_may_have_is_named(name: str, value: object) -> None:
    with pytest.raises(GenerationConfigInvalid, match=rf"In x {name} has to be a .* but is {value!r}"):
        sampling_defaults({name: value}, "x")


def test_inspect_finds_them_in_a_folder_and_in_a_tar(tmp_path: Path) -> None:
    files = {**FILES, "generation_config.json": json.dumps(CONFIG).encode()}
    folder, tar = write_files(tmp_path / "engine", files), packed(tmp_path, files)
    for place in (folder, tar, str(tar)):
        assert read_sampling(place, read_manifest(place)) == DEFAULTS
    without = packed(tmp_path / "other")
    assert read_sampling(without, read_manifest(without)) == {}
    broken = packed(tmp_path / "broken", {**files, "generation_config.json": b"{"})
    with pytest.raises(EngineUnreadable, match="it is not JSON"):
        read_sampling(broken, read_manifest(broken))
