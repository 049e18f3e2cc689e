"""Migrate the steps before the build: old conversion and quantization scripts to today's."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from builder.trtllm.flags import CONVERT, QUANTIZE
from builder.trtllm.old.flags import FlagChange, migrate_flags
from builder.trtllm.old.migration import Migration
from builder.trtllm.paths import is_same, resolve

_OLD_CONVERTERS = re.compile(r"hf_\w+_convert\.py|nemo_ckpt_convert\.py|hf_convert\.py")
"""The scripts that convert_checkpoint.py replaced; they wrote into ``<out-dir>/<tensor parallelism>-gpu``."""
_OF_NEMO = {"in-file": FlagChange("nemo_ckpt_path"), "model": FlagChange(None, "read from the checkpoint")}
_OTHER_FOLDER = re.compile(r"(?:\.\./|(?:.*/)?examples/)(?P<example>[\w-]+)/(?P<script>[\w-]+\.py)")


def migrate_script(migration: Migration, key: str) -> None:
    """Migrate step ``key``, which makes a checkpoint, and record the folders that it wrote into."""
    step = migration.keys[key]
    script = step.get("script")
    if not isinstance(script, str):
        return
    script = _into_its_folder(migration, key, script)
    appends = _OLD_CONVERTERS.fullmatch(script) is not None
    if appends:
        step["script"] = CONVERT
        migration.note(f"{key}.script", f"{script} is now {CONVERT}", f"{key}.script")
        _follow_appended_folder(migration, key, script)
    if "export_path" in step["args"] and "qformat" not in step["args"]:
        step["args"]["qformat"] = "fp8"
        migration.note(f"{key}.args.qformat", "now fp8, the old default", f"{key}.args.qformat")
    if step["script"] in (CONVERT, QUANTIZE):
        migrate_flags(migration, key, step["script"], _OF_NEMO if script.startswith("nemo") else None)
        follow_output_argument(migration, key)
    migration.folders[resolve(step["output_dir"])] = key


def follow_output_argument(migration: Migration, key: str) -> None:
    """Set ``output_dir`` of the step to the folder in its program's arguments, where the files are."""
    step = migration.keys[key]
    written = step["args"].get("output_dir", step["output_dir"])
    if isinstance(written, str) and not is_same(written, step["output_dir"]):
        migration.folders[resolve(step["output_dir"])] = key
        migration.note(f"{key}.output_dir", f"now {written}, as {key}.args.output_dir", f"{key}.output_dir")
        step["output_dir"] = written


def _into_its_folder(migration: Migration, key: str, script: str) -> str:
    """``../llama/convert_checkpoint.py`` is the script of example llama."""
    match = _OTHER_FOLDER.fullmatch(script)
    if match is None:
        return script
    migration.keys[key]["script"] = match["script"]
    text = f"now {match['script']}"
    if match["script"] != QUANTIZE and match["example"] != migration.keys.get("example_name"):
        migration.keys["example_name"] = match["example"]
        text += f" of example_name {match['example']}"
    migration.note(f"{key}.script", text, f"{key}.script")
    return match["script"]


def _follow_appended_folder(migration: Migration, key: str, script: str) -> None:
    """Old scripts wrote into ``<out-dir>/<tensor parallelism>-gpu``, today's into ``output_dir``."""
    step = migration.keys[key]
    args = step["args"]
    name = next((each for each in ("out-dir", "out_dir") if isinstance(args.get(each), str)), None)
    if name is None:
        return
    gpus = next((args[each] for each in ("tensor-parallelism", "tensor_parallelism") if each in args), 1)
    out_dir = args.pop(name)
    appended = str(PurePosixPath(out_dir) / f"{gpus}-gpu")
    migration.folders |= {resolve(out_dir): key, resolve(appended): key}
    if not is_same(step["output_dir"], out_dir) and not is_same(step["output_dir"], appended):
        migration.folders[resolve(step["output_dir"])] = key
        migration.note(f"{key}.output_dir", f"now {appended}, where {script} wrote", f"{key}.output_dir")
        step["output_dir"] = appended
    args["output_dir"] = step["output_dir"]
    text = f"now output_dir {step['output_dir']}"
    is_named = is_same(out_dir, step["output_dir"])
    why = "" if is_named else f"{script} appended {PurePosixPath(appended).name} itself"
    migration.note(f"{key}.args.{name}", text, f"{key}.args.output_dir", why)
