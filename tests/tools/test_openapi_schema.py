"""The committed OpenAPI documents are what the signatures say, with what callers of cog-triton know."""

import importlib
import json
from typing import Any

import cog
import pytest

from engine.machine.root import SOURCE_ROOT
from tools import openapi_schema
from tools.openapi_schema import RUNNERS, schema_text

TABLE: dict[str, tuple[str, object, dict[str, object]]] = {
    "prompt": ("string", None, {}),
    "system_prompt": ("string", None, {}),
    "max_tokens": ("integer", 512, {"minimum": 1}),
    "min_tokens": ("integer", None, {"minimum": -1}),
    "temperature": ("number", 0.7, {"minimum": 0, "maximum": 5}),
    "top_p": ("number", 0.95, {"minimum": 0, "maximum": 1}),
    "top_k": ("integer", 0, {"minimum": -1}),
    "stop_sequences": ("string", None, {}),
    "length_penalty": ("number", 1.0, {"minimum": 0, "maximum": 5}),
    "presence_penalty": ("number", 0.0, {}),
    "seed": ("integer", None, {}),
    "prompt_template": ("string", None, {"minLength": 1}),
    "log_performance_metrics": ("boolean", False, {}),
    "max_new_tokens": ("integer", None, {"minimum": 1}),
    "min_new_tokens": ("integer", None, {"minimum": -1}),
}
"""The original's inputs: type, default, limits."""

ADDED = {
    *("messages", "lora_name", "frequency_penalty", "repetition_penalty", "json_schema", "regex"),
    *("cache_salt", "priority", "max_queue_ms"),
}
LIMITS = ("minimum", "maximum", "minLength", "maxLength", "pattern")


def document(folder: str) -> dict[str, Any]:
    path = SOURCE_ROOT / folder / ".cog" / "openapi_schema.json"
    return json.loads(path.read_text())


def inputs(folder: str) -> dict[str, Any]:
    return document(folder)["components"]["schemas"]["Input"]["properties"]


@pytest.mark.parametrize("folder", RUNNERS)
def test_the_committed_document_is_that_of_the_signature_and_of_the_cog_that_serves_it(folder: str) -> None:
    path = SOURCE_ROOT / folder / ".cog" / "openapi_schema.json"
    assert path.read_text() == schema_text(f"{folder}.run"), "run `python -m tools.openapi_schema`"
    assert document(folder)["info"]["version"] == cog.__version__
    assert issubclass(importlib.import_module(f"{folder}.run").Runner, cog.BaseRunner)


def test_the_inputs_of_the_original_have_their_types_defaults_and_limits() -> None:
    schemas = inputs("runner")
    for name, (kind, default, limits) in TABLE.items():
        schema = schemas[name]
        assert schema["type"] == [kind, "null"], name
        assert schema.get("default") == default, name
        assert {key: schema[key] for key in LIMITS if key in schema} == limits, name
        assert schema["description"]
        assert bool(schema.get("deprecated")) == name.endswith("_new_tokens")
    assert [schema["x-order"] for schema in schemas.values()] == list(range(len(schemas)))


def test_the_runner_has_no_other_inputs_and_none_is_required() -> None:
    """The prompt is not: there may be messages in its place."""
    assert set(inputs("runner")) == set(TABLE) | ADDED
    assert "required" not in document("runner")["components"]["schemas"]["Input"]


def test_the_runners_output_is_a_concatenated_stream_of_strings() -> None:
    assert document("runner")["paths"]["/predictions"]["post"]["x-cog-streaming"] is True
    output = document("runner")["components"]["schemas"]["Output"]
    assert (output["type"], output["items"]) == ("array", {"type": "string"})
    assert (output["x-cog-array-type"], output["x-cog-array-display"]) == ("iterator", "concatenate")


def test_the_builder_takes_a_config_and_a_secret_and_answers_with_a_file() -> None:
    schema, schemas = inputs("builder"), document("builder")["components"]["schemas"]
    assert set(schema) == {"config", "hf_token"}
    assert "format" not in schema["config"], "with one, Cog would fetch a URL itself, from wherever it leads"
    assert (schema["hf_token"]["format"], schema["hf_token"]["x-cog-secret"]) == ("password", True)
    assert (schemas["Input"]["required"], schemas["Output"]["format"]) == (["config"], "uri")
    assert "x-cog-streaming" not in document("builder")["paths"]["/predictions"]["post"]


class Odd(cog.BaseRunner):
    def run(self, value: complex) -> cog.Path:
        raise AssertionError


def test_an_input_of_a_type_it_does_not_know_is_not_guessed() -> None:
    with pytest.raises(ValueError, match="value"):
        openapi_schema.openapi_schema(__name__, "Odd")
