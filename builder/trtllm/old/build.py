"""Migrate the build step: old ``build.py`` and earlier trtllm-builds to today's trtllm-build."""

from pathlib import PurePosixPath
from typing import Any

from builder.trtllm.flags import BUILD, CONVERT
from builder.trtllm.old.flags import Migration, drop_output_dir, migrate_flags
from builder.trtllm.paths import is_model_directory, is_same

_OLD_SCRIPT = "build.py"
_DEFAULT_MAX_INPUT_LEN = 1024


def migrate_build(migration: Migration) -> None:
    """Migrate the build step; add a conversion step if no step makes the checkpoint that it reads."""
    step = migration.keys["build"]
    was_script = step.get("script") is not None
    if not _is_trtllm_build(migration, step):
        return
    was_added = _read_a_checkpoint(migration)
    _name_world_size(migration.args("build"))
    migrate_flags(migration, "build", BUILD)
    args = migration.args("build")
    if was_added:
        _take_dtype_of_plugin(migration)
    _add_lengths(migration)
    if was_script and "max_input_len" in args and "fit_lengths" not in step:
        migration.keys["build"]["fit_lengths"] = True
        migration.note("build.fit_lengths", "now true", "build.py did not check the model's positions")
    _count_workers(migration)
    drop_output_dir(migration, "build")


def _is_trtllm_build(migration: Migration, step: dict[str, Any]) -> bool:
    """Return True if trtllm-build replaces the step; its ``executable`` is then set."""
    script, executable = step.get("script"), step.get("executable")
    if executable == BUILD and script is not None:
        migration.drop("build.script", "trtllm-build runs none")
    elif script is not None and PurePosixPath(script).name == _OLD_SCRIPT:
        migration.note("build.script", "build.py is now trtllm-build")
    elif executable is None and script is None:
        migration.note("build.executable", "now trtllm-build")
    elif executable != BUILD:
        return False
    step.pop("script", None)
    migration.keys["build"] = {"executable": BUILD} | step | {"executable": BUILD}
    return True


def _read_a_checkpoint(migration: Migration) -> bool:
    """Make the build read the checkpoint of the step before it. Return True if that step had to be added."""
    args, key = migration.args("build"), migration.checkpoint_key
    made = [
        migration.keys[each]["output_dir"]
        for each in ("convert_to_ft", "quantize")
        if migration.keys.get(each)
    ]
    given = args.get("checkpoint_dir")
    if isinstance(given, str) and (is_model_directory(given) or any(is_same(given, each) for each in made)):
        return False
    if "model_config" in args and given is None:
        return False
    for name in ("checkpoint_dir", "ft_model_dir", "model_dir"):
        if name in args:
            migration.drop(f"build.args.{name}", "the checkpoint of the step before is read")
            del args[name]
    if key is None:
        build = migration.keys.pop("build")
        step = {"script": CONVERT, "output_dir": "./checkpoint", "args": {}}
        migration.keys |= {"convert_to_ft": step, "build": build}
        why = "added, as no step makes the checkpoint; if there was a quantized one, add the flags for it"
        migration.note("convert_to_ft", why)
    return key is None


def _take_dtype_of_plugin(migration: Migration) -> None:
    """Give an added conversion the data type of the plugins, which must agree with it."""
    args = migration.args("build")
    for name in ("gpt_attention_plugin", "gemm_plugin"):
        if args.get(name) in ("float16", "bfloat16", "float32"):
            migration.args("convert_to_ft").setdefault("dtype", args[name])


def _name_world_size(args: dict[str, Any]) -> None:
    """Rename ``world_size``, which counted all GPUs; today's tp_size counts those that share a layer."""
    world_size, pp_size = _whole(args.get("world_size")), _whole(args.get("pp_size", 1))
    if world_size and pp_size and "tp_size" not in args and world_size % pp_size == 0:
        args["world_size"] = world_size // pp_size


def _add_lengths(migration: Migration) -> None:
    """Add ``max_seq_len``, the limit of prompt and output: old builds had one for each, not the model's."""
    step, args = migration.keys["build"], migration.args("build")
    output = _whole(args.get("max_output_len"))
    prompt = _whole(args.get("max_input_len", _DEFAULT_MAX_INPUT_LEN))
    if output is None or prompt is None:
        return
    del args["max_output_len"]
    if "max_seq_len" in args:
        migration.drop("build.args.max_output_len", "given by build.args.max_seq_len")
        return
    args["max_seq_len"] = prompt + output
    step["fit_lengths"] = True
    why = "max_input_len + max_output_len; the build reduces it if the model has fewer positions"
    migration.note("build.args.max_output_len", f"now max_seq_len {prompt + output}", why)


def _count_workers(migration: Migration) -> None:
    args, key = migration.args("build"), migration.checkpoint_key
    if "parallel_build" not in args:
        return
    is_on = args.pop("parallel_build") is not False
    converted = migration.args(key) if key else {}
    gpus = (_whole(converted.get("tp_size", 1)) or 1) * (_whole(converted.get("pp_size", 1)) or 1)
    if is_on and gpus > 1:
        args.setdefault("workers", gpus)
        migration.note("build.args.parallel_build", f"now workers {args['workers']}")
    else:
        migration.drop("build.args.parallel_build", "there is one GPU" if is_on else "it is off")


def _whole(value: object) -> int | None:
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value.strip()[:18])
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
