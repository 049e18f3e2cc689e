"""The published schema is today's, and takes what the builder takes where editors need it."""

import json
from pathlib import Path

import pytest

from builder.config.config import BuildConfig
from builder.trtllm.flags import BUILD, CONVERT, QUANTIZE, flags_of
from tools.build_config_schema import PATH, schema_text
from tools.generated import write

PROGRAMS = {"build": BUILD, "quantize": QUANTIZE, "convert_to_ft": CONVERT}


def test_the_published_schema_has_todays_keys_and_flags_and_no_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert PATH.read_text() == schema_text(), "run: python -m tools.build_config_schema"
    write({PATH: schema_text(), (stale := tmp_path / "schema.json"): "new"})
    assert (stale.read_text(), capsys.readouterr().out) == ("new", f"written: {stale}\n")
    schema = json.loads(PATH.read_text())
    assert set(schema["properties"]) == {*BuildConfig.model_fields, "hf_token"}
    assert schema["additionalProperties"] is False
    arguments = {key: schema["properties"][key]["properties"]["args"] for key in PROGRAMS}
    for key, program in PROGRAMS.items():
        assert set(arguments[key]["properties"]) == set(flags_of(program) or {})
    assert arguments["build"]["additionalProperties"] is False
    properties = arguments["build"]["properties"]
    assert properties["max_batch_size"] == {"type": "integer", "minimum": 1, "default": 2048}
    assert properties["context_fmha"] == {"enum": ["enable", "disable"], "default": "enable"}
    assert properties["strip_plan"] == {"type": ["null", "boolean"]}
    assert arguments["convert_to_ft"]["properties"]["weight_only_precision"]["enum"][-1] is None
