"""The folder in which a build's programs run: the model and other inputs are placed in it.

It stands for ``/src`` of cog-trt-llm's configs. Programs get paths relative to it, so a command is the same
wherever the folder is, and can't name anything outside.
"""

import json
import posixpath
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from builder.config.config import BuildConfig
from builder.trtllm.flags import Argument, find_flag, flags_of
from builder.trtllm.paths import MODELS_DIRECTORY, WORKING_DIRECTORY, model_directory, resolve
from builder.trtllm.summary import ProgramCall
from builder.weights.files import place
from builder.weights.model_files import Model
from errors.build_config import InvalidBuildValue

_CODE_KEY = "auto_map"
"""Key of JSON files that makes transformers load the model's own Python code."""
_NEED_NOT_EXIST = frozenset({"output_dir", "output-model-dir", "output_timing_cache", "input_timing_cache"})


def relative(given: str, key: str) -> str:
    """Return ``given`` relative to the workspace. Raises E1203, which names ``key``, if it is outside."""
    path = posixpath.relpath(resolve(given), WORKING_DIRECTORY)
    if path == ".." or path.startswith("../"):
        raise InvalidBuildValue(key=key, expected=f"a path inside {WORKING_DIRECTORY}", value=repr(given))
    return path


def check_output(call: ProgramCall) -> None:
    """Raise E1203 if the program would write over the model or into the workspace itself."""
    path = relative(call.output_dir, f"{call.key}.output_dir")
    if path == "." or PurePosixPath(path).parts[0] == posixpath.basename(MODELS_DIRECTORY):
        expected = f"a folder of its own, outside {MODELS_DIRECTORY}"
        raise InvalidBuildValue(key=f"{call.key}.output_dir", expected=expected, value=repr(call.output_dir))


def relative_args(call: ProgramCall) -> dict[str, Argument]:
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


def find_inputs(
    config: BuildConfig, calls: Sequence[ProgramCall], folders: Sequence[Path]
) -> dict[str, Path]:
    """Find what the programs read beside the model (LoRA weights, calibration texts): source by path.

    A config names them by paths relative to itself. Each is looked up in ``folders``, in order. Raises E1203
    if one is in none of them.
    """
    made = [model_directory(config), *(call.output_dir for call in calls)]
    made = [relative(path, "output_dir") for path in made]
    inputs = {}
    for call in calls:
        for name, path in _read_paths(call):
            if not any(PurePosixPath(path).is_relative_to(each) for each in made):
                inputs[path] = _find(path, f"{call.key}.args.{name}", folders)
    return inputs


def _read_paths(call: ProgramCall) -> list[tuple[str, str]]:
    found = []
    for name, value in relative_args(call).items():
        flag = find_flag(call.program, name)
        is_path = flag is not None and flag.type == "path" and name not in _NEED_NOT_EXIST
        given = str(call.args[name])
        if is_path or name == "lora_dir" or (name == "calib_dataset" and given.startswith(("/", "./"))):
            found += [(name, each) for each in str(value).split()]
    return found


def _find(path: str, key: str, folders: Sequence[Path]) -> Path:
    """Find the first match. Links that lead out of its folder are ignored."""
    for folder in folders:
        found = (folder / path).resolve()
        if found.exists() and found.is_relative_to(folder.resolve()):
            return found
    places = " or ".join(map(str, folders))
    raise InvalidBuildValue(key=key, expected=f"a file or folder in {places}", value=repr(path))


def place_inputs(inputs: Mapping[str, Path], folder: Path) -> None:
    for path, source in inputs.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source)


def place_model(config: BuildConfig, model: Model, folder: Path) -> None:
    """Put the model's files where the programs look for them.

    NOTE: TensorRT-LLM loads every model with trust_remote_code. Unless the config sets it too, the key by
    which a JSON file makes transformers run the model's code is removed.
    """
    target = folder / relative(model_directory(config), "model_id")
    target.mkdir(parents=True)
    for name, path in model.files.items():
        content = None if config.trust_remote_code or not name.endswith(".json") else _read_json(path)
        if isinstance(content, dict) and _CODE_KEY in content:
            del content[_CODE_KEY]
            (target / name).write_text(json.dumps(content, indent=2))
        else:
            place(path, target / name)


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_bytes())
    except ValueError:
        return None
