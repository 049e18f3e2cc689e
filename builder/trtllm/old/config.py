"""Migration of configs written for TensorRT-LLM 0.5 to 0.15, with a note for each change.

It changes the YAML mapping before that is checked, and leaves unknown keys to the checks. A config with a
``version`` is current and is not changed.
"""

import copy
import re
from collections.abc import Mapping
from types import NoneType
from typing import Any

from builder.trtllm.flags import CONVERT, QUANTIZE
from builder.trtllm.old.build import migrate_build
from builder.trtllm.old.flags import Migration, drop_output_dir, migrate_flags

STEPS = ("convert_to_ft", "quantize", "build")

_OLD_CONVERTER = re.compile(r"hf_\w+_convert\.py|hf_convert\.py")
"""Scripts that convert_checkpoint.py replaced."""
_OTHER_FOLDER = re.compile(r"(?:\.\./|(?:.*/)?examples/)(?P<example>[\w-]+)/(?P<script>[\w-]+\.py)")


def migrate(keys: Mapping[Any, Any]) -> tuple[dict[Any, Any], tuple[str, ...]]:
    """Return the current form of ``keys``, and a note for each change."""
    if not _is_old(keys):
        return dict(keys), ()
    migration = Migration(copy.deepcopy(dict(keys)))
    if "model_name" in migration.keys and "model_id" not in migration.keys:
        migration.keys = {"model_id": migration.keys.pop("model_name"), **migration.keys}
        migration.note("model_name", "now model_id")
    steps = [key for key in STEPS if migration.keys.get(key) is not None]
    for key in steps:
        migration.keys[key]["args"] = migration.keys[key].get("args") or {}
    for key in steps:
        migrate_build(migration) if key == "build" else _migrate_script(migration, key)
    return migration.keys, tuple(migration.notes)


def _is_old(keys: Mapping[Any, Any]) -> bool:
    """Return True if ``keys`` has the form of a TensorRT-LLM config without a version."""
    steps = [keys[key] for key in STEPS if keys.get(key) is not None]
    is_other = keys.get("version") is not None or keys.get("engine") not in (None, "tensorrt_llm")
    has_names = all(isinstance(keys.get(key), (str, NoneType)) for key in ("model_id", "example_name"))
    return bool(steps) and not is_other and has_names and all(map(_is_step, steps))


def _is_step(step: object) -> bool:
    if not isinstance(step, dict) or not isinstance(step.get("output_dir"), str):
        return False
    if not all(isinstance(step.get(key), (str, NoneType)) for key in ("script", "executable")):
        return False
    args = step.get("args")
    return args is None or (isinstance(args, dict) and all(isinstance(name, str) for name in args))


def _migrate_script(migration: Migration, key: str) -> None:
    step = migration.keys[key]
    _name_example(migration, key)
    script = step.get("script") or ""
    if _OLD_CONVERTER.fullmatch(script):
        step["script"] = CONVERT
        migration.note(f"{key}.script", f"{script} is now {CONVERT}")
    if "export_path" in step["args"] and "qformat" not in step["args"]:
        step["args"]["qformat"] = "fp8"
        migration.note(f"{key}.args.qformat", "now fp8, the old default")
    if step.get("script") in (CONVERT, QUANTIZE):
        migrate_flags(migration, key, step["script"])
        drop_output_dir(migration, key)


def _name_example(migration: Migration, key: str) -> None:
    """Name the example: ``../llama/convert_checkpoint.py`` is the script of llama."""
    match = _OTHER_FOLDER.fullmatch(migration.keys[key].get("script") or "")
    if match is None:
        return
    migration.keys[key]["script"] = match["script"]
    text = f"now {match['script']}"
    if match["script"] != QUANTIZE and match["example"] != migration.keys.get("example_name"):
        migration.keys["example_name"] = match["example"]
        text += f" of example_name {match['example']}"
    migration.note(f"{key}.script", text)
