"""Old flags become today's, one by one, by the tables in ``spellings``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from builder.trtllm.flags import BUILD, QUANTIZE, TOGGLE, Flag, find_flag
from builder.trtllm.old.flag_changes import DTYPES, Fate
from builder.trtllm.old.migration import Migration

_QUANTIZE_FORMS = {"int8_kv_cache": ("kv_cache_dtype", "int8"), "fp8_kv_cache": ("kv_cache_dtype", "fp8")}
_DEFAULT_SMOOTHQUANT = 0.5


def migrate_flags(migration: Migration, key: str, program: str, fates: Mapping[str, Fate]) -> None:
    """Put the arguments of step ``key`` into the form that ``program`` takes today, in their order."""
    old = migration.args(key)
    migration.keys[key]["args"] = {}
    for name, value in old.items():
        fate = _fate(fates, name)
        if fate is None:
            _keep(migration, key, program, name, value)
        elif fate.place == "here" and fate.to is not None:
            _rename(migration, key, program, name, value, fate)
        elif fate.to is None:
            migration.drop(f"{key}.args.{name}", fate.why)
        elif fate.place == "checkpoint":
            _move_to_checkpoint(migration, key, name, value, fate)
        elif "build" in migration.keys:
            _put(migration, "build", BUILD, f"{key}.args.{name}", fate.to, value, fate.why)


def _fate(fates: Mapping[str, Fate], name: str) -> Fate | None:
    """Scripts of old spelled flags with dashes or with underscores, and configs do either."""
    spellings = (name, name.replace("_", "-"), name.replace("-", "_"))
    return next((fates[each] for each in spellings if each in fates), None)


def _keep(migration: Migration, key: str, program: str, name: str, value: object) -> None:
    """A flag that is still there; only how it is spelled or what stands for its value may be old."""
    args, old = migration.args(key), f"{key}.args.{name}"
    example_name = migration.keys.get("example_name")
    plain = name.replace("-", "_")
    flag = find_flag(program, name, example_name) or find_flag(program, plain, example_name)
    if flag is None:
        args[name] = value
        return
    today = name if name in (flag.name, flag.alias) else plain
    fitting = fit_value(flag, value)
    args[today] = fitting
    if today != name:
        migration.note(old, f"now {today}", f"{key}.args.{today}")
    elif fitting is not value:
        was = "without a value" if value is None else f"{value}"
        migration.note(old, f"was {was}, now {fitting}", f"{key}.args.{today}")


def _rename(migration: Migration, key: str, program: str, name: str, value: object, fate: Fate) -> None:
    value = _value_of(fate, value)
    _put(migration, key, program, f"{key}.args.{name}", str(fate.to), value, fate.why)


def _move_to_checkpoint(migration: Migration, key: str, name: str, value: object, fate: Fate) -> None:
    old, target, to = f"{key}.args.{name}", migration.checkpoint_key, str(fate.to)
    is_off = value is False and fate.kind == "switch"
    if target is None or is_off:
        migration.drop(old, "it is off" if is_off else fate.why)
        return
    program = migration.keys[target].get("script", "")
    if program == QUANTIZE and to in _QUANTIZE_FORMS:
        to, value = _QUANTIZE_FORMS[to]
    if name == "use_smooth_quant":
        value = _DEFAULT_SMOOTHQUANT
    if find_flag(program, to, migration.keys.get("example_name")) is None:
        migration.drop(old, f"{program} decides")
    else:
        _put(migration, target, program, old, to, _value_of(fate, value), fate.why)


def _put(migration: Migration, key: str, program: str, old: str, to: str, value: Any, why: str) -> None:
    """Set ``to`` in step ``key``, if nothing has set it yet, and tell it."""
    args, new = migration.args(key), f"{key}.args.{to}"
    if to in args:
        migration.drop(old, f"{new} tells")
        return
    flag = find_flag(program, to)
    args[to] = fit_value(flag, value) if flag is not None else value
    is_elsewhere = not old.startswith(f"{key}.")
    shown = "" if args[to] is None else f" {args[to]}"
    migration.note(old, f"now {new if is_elsewhere else to}{shown}", new, why)


def _value_of(fate: Fate, value: object) -> object:
    if fate.kind == "kv_cache_type":
        return "continuous" if value in (False, "disable") else "paged"
    if fate.kind == "switch":
        return None if value is True else value
    if fate.kind == "path_stem" and isinstance(value, str):
        return re.sub(r"\.(pt|pth|npz|safetensors)$", "", value)
    return value


def fit_value(flag: Flag, value: object) -> Any:
    """``value`` as the flag takes it today: of old a flag alone turned features and plugins on."""
    if isinstance(value, str) and value in DTYPES and "float16" in flag.choices:
        return DTYPES[value]
    if value is None or isinstance(value, bool):
        if flag.choices == TOGGLE:
            return "disable" if value is False else "enable"
        if "disable" in flag.choices and "auto" in flag.choices:
            return "disable" if value is False else "auto"
    return value
