"""Rename and convert old flags, one by one, as ``flag_changes.yaml`` says."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from builder.trtllm.flags import BUILD, QUANTIZE, TOGGLE, Flag, find_flag
from builder.trtllm.paths import is_same

_QUANTIZE_FORMS = {"int8_kv_cache": ("kv_cache_dtype", "int8"), "fp8_kv_cache": ("kv_cache_dtype", "fp8")}
_DEFAULT_SMOOTHQUANT = 0.5
_DTYPES = {"fp32": "float32", "fp16": "float16", "bf16": "bfloat16", "half": "float16"}


@dataclass
class Migration:
    """A config that is being migrated, and a note for each change."""

    keys: dict[str, Any]
    notes: list[str] = field(default_factory=list)

    def note(self, key: str, text: str, why: str = "") -> None:
        """Note a change. ``key`` is the path of the old key."""
        self.notes.append(f"{key}: {text}{why and f' ({why})'}")

    def drop(self, key: str, why: str) -> None:
        self.note(key, "dropped", why)

    def args(self, step: str) -> dict[str, Any]:
        args: dict[str, Any] = self.keys[step]["args"]
        return args

    @property
    def checkpoint_key(self) -> str | None:
        return next((key for key in ("quantize", "convert_to_ft") if self.keys.get(key) is not None), None)


@dataclass(frozen=True)
class FlagChange:
    """Change of a flag to ``to``, None for a dropped one. ``step`` takes it; None: the step that had it."""

    to: str | None = None
    why: str = ""
    kind: Literal["value", "switch", "kv_cache_type"] = "value"
    step: Literal["checkpoint", "build"] | None = None


@cache
def flag_changes(program: str) -> Mapping[str, FlagChange]:
    """Return the changes of ``program``'s flags, by old name."""
    rows = yaml.safe_load(Path(__file__).with_name("flag_changes.yaml").read_text())[program]
    changes = {}
    for row in rows:
        for name in row.pop("flags"):
            changes[name] = FlagChange(**{**row, "to": name if row.get("to") == "same" else row.get("to")})
    return changes


def migrate_flags(migration: Migration, key: str, program: str) -> None:
    """Replace the arguments of step ``key`` by those of today's ``program``."""
    changes = flag_changes(program)
    old = migration.args(key)
    migration.keys[key]["args"] = {}
    for name, value in old.items():
        change = _find(changes, name)
        if change is None:
            _keep(migration, key, program, name, value)
        elif change.to is None:
            migration.drop(f"{key}.args.{name}", change.why)
        elif change.step is None:
            new_value = _convert(change, value)
            _put(migration, key, program, f"{key}.args.{name}", change.to, new_value, change.why)
        elif change.step == "checkpoint":
            _move_to_checkpoint(migration, key, name, value, change)
        elif "build" in migration.keys:
            _put(migration, "build", BUILD, f"{key}.args.{name}", change.to, value, change.why)


def drop_output_dir(migration: Migration, key: str) -> None:
    """Drop the step's argument ``output_dir`` if its key ``output_dir`` names another folder."""
    step = migration.keys[key]
    given = step["args"].get("output_dir")
    if isinstance(given, str) and not is_same(given, step["output_dir"]):
        del step["args"]["output_dir"]
        migration.drop(f"{key}.args.output_dir", f"given by {key}.output_dir")


def _find(changes: Mapping[str, FlagChange], name: str) -> FlagChange | None:
    """Find a flag that is spelled with dashes or with underscores: old scripts differ, and configs too."""
    spellings = (name, name.replace("_", "-"), name.replace("-", "_"))
    return next((changes[each] for each in spellings if each in changes), None)


def _keep(migration: Migration, key: str, program: str, name: str, value: object) -> None:
    """Keep a flag that still exists, with today's spelling and value."""
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
        migration.note(old, f"now {today}")
    elif fitting is not value:
        was = "without a value" if value is None else f"{value}"
        migration.note(old, f"was {was}, now {fitting}")


def _move_to_checkpoint(migration: Migration, key: str, name: str, value: object, change: FlagChange) -> None:
    old, target, to = f"{key}.args.{name}", migration.checkpoint_key, str(change.to)
    is_off = value is False and change.kind == "switch"
    if target is None or is_off:
        migration.drop(old, "it is off" if is_off else change.why)
        return
    program = migration.keys[target].get("script", "")
    if program == QUANTIZE and to in _QUANTIZE_FORMS:
        to, value = _QUANTIZE_FORMS[to]
    if name == "use_smooth_quant":
        value = _DEFAULT_SMOOTHQUANT
    if find_flag(program, to, migration.keys.get("example_name")) is None:
        migration.drop(old, f"{program} decides")
    else:
        _put(migration, target, program, old, to, _convert(change, value), change.why)


def _put(migration: Migration, key: str, program: str, old: str, to: str, value: Any, why: str) -> None:
    """Set ``to`` in step ``key`` unless it is set already, and note the change."""
    args, new = migration.args(key), f"{key}.args.{to}"
    if to in args:
        migration.drop(old, f"given by {new}")
        return
    flag = find_flag(program, to)
    args[to] = fit_value(flag, value) if flag is not None else value
    is_elsewhere = not old.startswith(f"{key}.")
    shown = "" if args[to] is None else f" {args[to]}"
    migration.note(old, f"now {new if is_elsewhere else to}{shown}", why)


def _convert(change: FlagChange, value: object) -> object:
    if change.kind == "kv_cache_type":
        return "continuous" if value in (False, "disable") else "paged"
    if change.kind == "switch":
        return None if value is True else value
    return value


def fit_value(flag: Flag, value: object) -> Any:
    """Return ``value`` as the flag takes it today; without one, an old flag turned something on."""
    if isinstance(value, str) and value in _DTYPES and "float16" in flag.choices:
        return _DTYPES[value]
    if value is None or isinstance(value, bool):
        if flag.choices == TOGGLE:
            return "disable" if value is False else "enable"
        if "disable" in flag.choices and "auto" in flag.choices:
            return "disable" if value is False else "auto"
    return value
