"""The committed OpenAPI documents are what the signatures say, with what callers of cog-triton know."""

from __future__ import annotations

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
    schema: dict[str, Any] = json.loads(path.read_text())
    return schema


def inputs(folder: str) -> dict[str, Any]:
    properties: dict[str, Any] = document(folder)["components"]["schemas"]["Input"]["properties"]
    return properties


@pytest.mark.parametrize("folder", RUNNERS)
def test_the_committed_document_is_what_the_signature_says(folder: str) -> None:
    path = SOURCE_ROOT / folder / ".cog" / "openapi_schema.json"
    assert path.read_text() == schema_text(f"{folder}.run"), "run `python -m tools.openapi_schema`"


@pytest.mark.parametrize("name", TABLE)
def test_an_input_of_the_original_has_its_type_default_and_limits(name: str) -> None:
    kind, default, limits = TABLE[name]
    schema = inputs("runner")[name]
    kinds = [schema["type"]] if isinstance(schema["type"], str) else schema["type"]
    is_optional = default is None
    assert kinds == [kind, "null"] if is_optional else [kind]
    assert schema.get("default") == default
    assert {key: schema[key] for key in LIMITS if key in schema} == limits
    assert schema["description"]


def test_the_runner_has_no_other_inputs_and_none_is_required() -> None:
    """The prompt is not: there may be messages in its place."""
    assert set(inputs("runner")) == set(TABLE) | ADDED
    assert "required" not in document("runner")["components"]["schemas"]["Input"]


def test_inputs_are_in_the_order_of_the_signature() -> None:
    names = inputs("runner")
    assert [schema["x-order"] for schema in names.values()] == list(range(len(names)))


def test_older_names_are_marked_as_such() -> None:
    deprecated = {name for name, schema in inputs("runner").items() if schema.get("deprecated")}
    assert deprecated == {"max_new_tokens", "min_new_tokens"}


def test_the_runner_streams_and_the_builder_does_not() -> None:
    assert document("runner")["paths"]["/predictions"]["post"]["x-cog-streaming"] is True
    assert "x-cog-streaming" not in document("builder")["paths"]["/predictions"]["post"]


def test_the_runners_output_is_a_concatenated_stream_of_strings() -> None:
    output = document("runner")["components"]["schemas"]["Output"]
    assert output["type"] == "array"
    assert output["items"] == {"type": "string"}
    assert (output["x-cog-array-type"], output["x-cog-array-display"]) == ("iterator", "concatenate")


def test_the_builder_takes_a_config_and_a_secret_and_answers_with_a_file() -> None:
    schema = inputs("builder")
    assert set(schema) == {"config", "hf_token"}
    assert "format" not in schema["config"], "with one, Cog would fetch a URL itself, from wherever it leads"
    assert (schema["hf_token"]["format"], schema["hf_token"]["x-cog-secret"]) == ("password", True)
    assert document("builder")["components"]["schemas"]["Input"]["required"] == ["config"]
    assert document("builder")["components"]["schemas"]["Output"]["format"] == "uri"


@pytest.mark.parametrize("folder", RUNNERS)
def test_the_document_is_of_the_cog_that_serves_it(folder: str) -> None:
    assert document(folder)["info"]["version"] == cog.__version__
    assert issubclass(importlib.import_module(f"{folder}.run").Runner, cog.BaseRunner)


class Odd(cog.BaseRunner):  # type: ignore[misc]
    def run(self, value: complex) -> cog.Path:
        raise AssertionError


def test_an_input_of_a_type_it_does_not_know_is_not_guessed() -> None:
    with pytest.raises(ValueError, match="value"):
        openapi_schema.openapi_schema(__name__, "Odd")
