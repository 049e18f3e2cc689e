"""Write ``builder/build_config.schema.json``, by which editors check and complete build configs."""

import json
import math
from pathlib import Path
from typing import Any

from builder.config.config import BuildConfig
from builder.trtllm.flags import BUILD, CONVERT, QUANTIZE, VERSION, Flag, flags_of
from tools.generated import write

PATH = Path(__file__).resolve().parents[1] / "builder" / "build_config.schema.json"
_PROGRAMS = {"convert_to_ft": CONVERT, "quantize": QUANTIZE, "build": BUILD}
_TYPES = {"int": "integer", "float": "number"}


def build_config_schema() -> dict[str, Any]:
    schema = BuildConfig.model_json_schema()
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}
    schema["title"] = "cog-triton build config"
    schema["properties"]["hf_token"] = {"type": "string", "description": "Hugging Face token"}
    for key, program in _PROGRAMS.items():
        step = "BuildStep" if program == BUILD else "ProgramStep"
        # NOTE: no null beside it, though it would be taken: editors then tell only that neither fits.
        schema["properties"][key] = {"$ref": f"#/$defs/{step}", "properties": {"args": _arguments(program)}}
    return schema


def _arguments(program: str) -> dict[str, Any]:
    """Return the flags of ``program``; other scripts than these may have more, trtllm-build may not."""
    flags = flags_of(program) or {}
    arguments: dict[str, Any] = {
        "description": f"The flags of {program}, TensorRT-LLM {VERSION}; one without a value is a switch.",
        "type": ["object", "null"],
        "properties": {name: _property(flag) for name, flag in flags.items()},
    }
    return arguments | ({"additionalProperties": False} if program == BUILD else {})


def _property(flag: Flag) -> dict[str, Any]:
    default = {} if flag.default is None else {"default": flag.default}
    if flag.is_switch:
        return {"type": ["null", "boolean"]}
    if flag.choices:
        return {"enum": [*flag.choices, *([None] if flag.bare is not None else [])], **default}
    limits = {"minimum": flag.min, "maximum": flag.max}
    limits = {name: limit for name, limit in limits.items() if math.isfinite(limit)}
    return {"type": _TYPES.get(flag.type, "string"), **limits, **default}


def schema_text() -> str:
    return json.dumps(build_config_schema(), indent=2) + "\n"


if __name__ == "__main__":
    write({PATH: schema_text()})
