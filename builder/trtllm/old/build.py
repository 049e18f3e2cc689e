"""Migrate the build step: old ``build.py`` and earlier trtllm-builds to today's trtllm-build."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from builder.trtllm.flags import BUILD, CONVERT
from builder.trtllm.old.flags import migrate_flags
from builder.trtllm.old.migration import Migration
from builder.trtllm.old.scripts import follow_output_argument
from builder.trtllm.paths import MODELS_DIRECTORY, is_model_directory, resolve

_OLD_SCRIPT = "build.py"
_ADDED_CHECKPOINT = "./checkpoint"
_DEFAULT_MAX_INPUT_LEN = 1024
_SOURCES = ("ft_model_dir", "quant_ckpt_path", "model_dir", "checkpoint_dir")
"""Flags that named what to build, the most specific first."""


def migrate_build(migration: Migration) -> None:
    """Migrate the build step; add a conversion step if no step makes the checkpoint that it reads."""
    step = migration.keys["build"]
    was_script = step.get("script") is not None
    if not _is_trtllm_build(migration, step):
        return
    was_added = _read_a_checkpoint(migration)
    _name_world_size(migration)
    migrate_flags(migration, "build", BUILD)
    if was_added:
        _take_dtype_of_plugin(migration)
    _add_lengths(migration)
    if was_script:
        _fit_input_length(migration)
    _count_workers(migration)
    follow_output_argument(migration, "build")


def _is_trtllm_build(migration: Migration, step: dict[str, Any]) -> bool:
    """Whether trtllm-build replaces the step; its ``executable`` is then set."""
    script, executable = step.get("script"), step.get("executable")
    if executable == BUILD and script is not None:
        migration.drop("build.script", "trtllm-build runs none")
    elif isinstance(script, str) and PurePosixPath(script).name == _OLD_SCRIPT:
        migration.note("build.script", "build.py is now trtllm-build", "build.executable")
    elif executable is None and script is None:
        migration.note("build.executable", "now trtllm-build", "build.executable")
    elif executable != BUILD:
        return False
    step.pop("script", None)
    migration.keys["build"] = {"executable": BUILD} | step | {"executable": BUILD}
    return True


def _read_a_checkpoint(migration: Migration) -> bool:
    """Make the build read the checkpoint of the step before it; True if that step had to be added."""
    args = migration.args("build")
    given = [name for name in _SOURCES if isinstance(args.get(name), str)]
    named = next((name for name in given if name != "quant_ckpt_path"), None)
    made = next((name for name in given if resolve(args[name]) in migration.folders), None)
    if made is not None:
        source = args[made]
        key = migration.folders[resolve(source)]
        now = migration.keys[key]["output_dir"]
        _set_checkpoint(migration, source if resolve(source) == resolve(now) else now, made)
        return False
    if "checkpoint_dir" in args and is_model_directory(str(args["checkpoint_dir"])):
        return False  # the model may be a checkpoint already
    if "model_config" in args and "checkpoint_dir" not in args:
        return False
    if migration.checkpoint_key is not None:
        _set_checkpoint(migration, migration.keys[migration.checkpoint_key]["output_dir"], named)
        return False
    _add_conversion(migration, named)
    return True


def _set_checkpoint(migration: Migration, folder: str, name: str | None = None) -> None:
    """Make the build read ``folder``, which flag ``name`` named until now."""
    args = migration.args("build")
    for each in ("ft_model_dir", "model_dir"):
        if each in args and each != name:
            migration.drop(f"build.args.{each}", "the checkpoint is read instead")
            del args[each]
    if name is not None and (name != "checkpoint_dir" or args[name] != folder):
        migration.note(f"build.args.{name}", f"now checkpoint_dir {folder}", "build.args.checkpoint_dir")
        del args[name]
    rest = {each: value for each, value in args.items() if each != "checkpoint_dir"}
    migration.keys["build"]["args"] = {"checkpoint_dir": folder, **rest}


def _add_conversion(migration: Migration, named: str | None) -> None:
    args = migration.args("build")
    folder = str(args.get("checkpoint_dir", _ADDED_CHECKPOINT))
    model = str(args.get("model_dir", ""))
    if not is_model_directory(model):
        model = f"{MODELS_DIRECTORY}/{migration.keys.get('model_id') or 'model'}"
    step = {"script": CONVERT, "output_dir": folder, "args": {"model_dir": model, "output_dir": folder}}
    build = migration.keys.pop("build")
    migration.keys |= {"convert_to_ft": step, "build": build}
    if "checkpoint_dir" in args:
        why = f"added, as no step makes the checkpoint {folder}; if it was quantized, add the flags for it"
    else:
        why = "added, as trtllm-build reads a checkpoint and build.py read the model"
    migration.note("convert_to_ft", why, "convert_to_ft")
    _set_checkpoint(migration, folder, named)


def _take_dtype_of_plugin(migration: Migration) -> None:
    """An added conversion takes the data type of the plugins, which must agree with it."""
    args = migration.args("build")
    for name in ("gpt_attention_plugin", "gemm_plugin"):
        if args.get(name) in ("float16", "bfloat16", "float32"):
            migration.args("convert_to_ft").setdefault("dtype", args[name])


def _name_world_size(migration: Migration) -> None:
    """``world_size`` counted all GPUs; today's tp_size counts those that share a layer."""
    args = migration.args("build")
    world_size, pp_size = _whole(args.get("world_size")), _whole(args.get("pp_size", 1))
    if world_size is None or not pp_size:
        return
    if "tp_size" in args or world_size % pp_size:
        migration.drop("build.args.world_size", "given by tp_size and pp_size")
        del args["world_size"]
    else:
        args["world_size"] = world_size // pp_size


def _add_lengths(migration: Migration) -> None:
    """``max_seq_len`` counts prompt and output; old builds had a limit for each and ignored the model's."""
    step, args = migration.keys["build"], migration.args("build")
    output = _whole(args.get("max_output_len"))
    prompt = _whole(args.get("max_input_len", _DEFAULT_MAX_INPUT_LEN))
    if output is None or prompt is None:
        return
    if "max_seq_len" in args:
        migration.drop("build.args.max_output_len", "given by build.args.max_seq_len")
        del args["max_output_len"]
        return
    renamed = {"max_seq_len" if name == "max_output_len" else name: value for name, value in args.items()}
    step["args"] = renamed | {"max_seq_len": prompt + output}
    step["fit_lengths"] = True
    text, why = (
        f"now max_seq_len {prompt + output}",
        "max_input_len + max_output_len, cut to the model's positions",
    )
    migration.note("build.args.max_output_len", text, "build.args.max_seq_len", why)


def _fit_input_length(migration: Migration) -> None:
    """build.py accepted a max_input_len of any size."""
    step = migration.keys["build"]
    if "max_input_len" in step["args"] and "fit_lengths" not in step:
        step["fit_lengths"] = True
        why = "build.py did not check the model's number of positions"
        migration.note("build.fit_lengths", "now true", "build.fit_lengths", why)


def _count_workers(migration: Migration) -> None:
    args = migration.args("build")
    if "parallel_build" not in args:
        return
    is_on = args.pop("parallel_build") is not False
    key = migration.checkpoint_key
    converted = migration.args(key) if key else {}
    gpus = (_whole(converted.get("tp_size", 1)) or 1) * (_whole(converted.get("pp_size", 1)) or 1)
    if is_on and gpus > 1 and "workers" not in args:
        args["workers"] = gpus
        migration.note("build.args.parallel_build", f"now workers {gpus}", "build.args.workers")
    else:
        why = "it is off" if not is_on else "there is one GPU" if gpus == 1 else "given by workers"
        migration.drop("build.args.parallel_build", why)


def _whole(value: object) -> int | None:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value.strip()[:18])
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
