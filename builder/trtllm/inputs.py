"""What programs read beside the model and their own results: LoRA weights, calibration texts.

A config names them by paths relative to itself; they are linked into the folder that the programs run in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from builder.config.config import BuildConfig
from builder.trtllm.commands import Command
from builder.trtllm.flags import find_flag
from builder.trtllm.paths import model_directory
from builder.trtllm.workspace import relative, relative_args
from errors.build_config import InvalidBuildValue

_NEED_NOT_EXIST = frozenset({"output_dir", "output-model-dir", "output_timing_cache", "input_timing_cache"})


def find_inputs(config: BuildConfig, commands: Sequence[Command], folders: Sequence[Path]) -> dict[str, Path]:
    """By its path for the programs, where each input lies: below the first of ``folders`` that has it.

    Raises E1203 for one that is in none of them.
    """
    made = [relative(model_directory(config), "model_id"), *(command.output_dir for command in commands)]
    inputs = {}
    for command in commands:
        for name, path in _paths(command):
            if not any(PurePosixPath(path).is_relative_to(each) for each in made):
                inputs[path] = _find(path, f"{command.key}.args.{name}", folders)
    return inputs


def place_inputs(inputs: Mapping[str, Path], folder: Path) -> None:
    """Link each input into ``folder``."""
    for path, place in inputs.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(place)


def _paths(command: Command) -> list[tuple[str, str]]:
    """Name and value of the arguments that are paths to read."""
    call = command.call
    found = []
    for name, value in relative_args(call).items():
        flag = find_flag(call.program, name)
        is_path = flag is not None and flag.type == "path" and name not in _NEED_NOT_EXIST
        given = str(call.args[name])
        if is_path or name == "lora_dir" or (name == "calib_dataset" and given.startswith(("/", "./"))):
            found += [(name, each) for each in str(value).split()]
    return found


def _find(path: str, key: str, folders: Sequence[Path]) -> Path:
    """Links must not lead out of the folder."""
    for folder in folders:
        found = (folder / path).resolve()
        if found.exists() and found.is_relative_to(folder.resolve()):
            return found
    places = " or ".join(map(str, folders))
    raise InvalidBuildValue(key=key, expected=f"a file or folder in {places}", value=repr(path))
