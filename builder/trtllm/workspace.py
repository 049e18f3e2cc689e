"""The folder a build's programs run in: what ``/src`` was to cog-trt-llm's configs, and nothing outside of
it.

Programs get paths relative to it, so that a command reads the same wherever the folder lies.
"""

from __future__ import annotations

import json
import posixpath
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from builder.config.config import BuildConfig
from builder.trtllm.flags import Argument, find_flag, flags_of
from builder.trtllm.paths import MODELS_DIRECTORY, WORKING_DIRECTORY, model_directory, resolve
from builder.trtllm.summary import ProgramCall
from builder.weights.files import place
from builder.weights.model_files import Model
from errors.build_config import InvalidBuildValue

_RUNS_CODE = ("auto_map",)
"""Keys of JSON files by which transformers is told to load a model's own Python code."""


def relative(given: str, key: str) -> str:
    """``given`` relative to the folder; E1203, which names ``key``, if it lies outside."""
    path = posixpath.relpath(resolve(given), WORKING_DIRECTORY)
    if path == ".." or path.startswith("../"):
        raise InvalidBuildValue(key=key, expected=f"a path inside {WORKING_DIRECTORY}", value=repr(given))
    return path


def check_output(call: ProgramCall) -> None:
    """E1203 if the program would write over the model or into the folder itself."""
    path = relative(call.output_dir, f"{call.key}.output_dir")
    models = posixpath.basename(MODELS_DIRECTORY)
    if path == "." or PurePosixPath(path).parts[0] == models:
        expected = f"a folder of its own, outside {MODELS_DIRECTORY}"
        raise InvalidBuildValue(key=f"{call.key}.output_dir", expected=expected, value=repr(call.output_dir))


def relative_args(call: ProgramCall) -> dict[str, Argument]:
    """The arguments of ``call`` with every path in them relative."""
    return {name: _relative_argument(call, name, value) for name, value in call.args.items()}


def _relative_argument(call: ProgramCall, name: str, value: Argument) -> Argument:
    if not isinstance(value, str):
        return value
    key = f"{call.key}.args.{name}"
    flag = find_flag(call.program, name)
    if flag is not None and flag.type == "path":
        return relative(value, key)
    if flag is not None and flag.type == "list" and name == "lora_dir":
        return " ".join(relative(each, key) for each in value.split())
    may_be_path = flags_of(call.program) is None or name == "calib_dataset"
    return relative(value, key) if may_be_path and value.startswith(("/", "./", "../")) else value


def place_model(config: BuildConfig, model: Model, folder: Path) -> None:
    """Put the model's files where the programs look for them.

    NOTE: TensorRT-LLM loads every model with trust_remote_code. Unless the config asks for that, too, the
    files that would make it run the model's code are written without these keys.
    """
    target = folder / relative(model_directory(config), "model_id")
    target.mkdir(parents=True)
    for name, path in model.files.items():
        if not config.trust_remote_code and name.endswith(".json"):
            _place_without_code(path, target / name)
        else:
            place(path, target / name)


def _place_without_code(source: Path, target: Path) -> None:
    try:
        content = json.loads(source.read_bytes())
    except ValueError:
        content = None
    if isinstance(content, Mapping) and any(key in content for key in _RUNS_CODE):
        kept = {key: value for key, value in content.items() if key not in _RUNS_CODE}
        target.write_text(json.dumps(kept, indent=2))
    else:
        place(source, target)
