"""Flags of TensorRT-LLM's programs (``flags/<version>.yaml``), by which a config's arguments are checked.

A program is known by its file name: ``trtllm-build``, ``quantize.py``, ``convert_checkpoint.py``. The
arguments of any other script are passed on unchecked.
"""

import difflib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any, Union

import yaml

from builder.config.config import ProgramStep, shown
from errors.build_config import InvalidBuildValue, UnknownFlag

VERSION = "0.16.0"
"""The version of TensorRT-LLM that builds engines."""

BUILD, QUANTIZE, CONVERT = "trtllm-build", "quantize.py", "convert_checkpoint.py"
TOGGLE = ("enable", "disable")

Argument = Union[str, bool, int, float, None]  # noqa: UP007 - evaluated, and Python 3.10 prints it as it is
Arguments = Mapping[str, Argument]


@dataclass(frozen=True)
class Flag:
    """One flag of a program; ``type`` is that of the data file, or "choice" if there are ``choices``."""

    name: str
    type: str
    choices: tuple[str | int, ...] = ()
    min: float = -math.inf
    max: float = math.inf
    default: Argument = None
    only: tuple[str, ...] = ()
    alias: str | None = None
    bare: str | None = None
    needs_script: bool = False

    @property
    def is_switch(self) -> bool:
        return self.type == "switch"

    @property
    def allowed(self) -> str:
        if self.choices:
            return " or ".join(
                filter(None, (", ".join(map(repr, self.choices[:-1])), repr(self.choices[-1])))
            )
        if self.type in ("int", "float"):
            kind = "a whole number" if self.type == "int" else "a number"
            if math.isfinite(self.max):
                return f"{kind} from {self.min:g} to {self.max:g}"
            return f"{kind}, at least {self.min:g}" if math.isfinite(self.min) else kind
        return {"switch": "empty, true or false", "path": "a path"}.get(self.type, "text")

    def allows(self, value: Argument) -> bool:
        """Return True if the program accepts ``value``; None is the flag without a value."""
        if self.is_switch:
            return value is None or isinstance(value, bool)
        if value is None:
            return self.bare is not None
        if self.choices:
            return not isinstance(value, bool) and str(value) in map(str, self.choices)
        if self.type in ("int", "float"):
            number = _number(value, whole=self.type == "int")
            return number is not None and self.min <= number <= self.max
        return not isinstance(value, bool) and bool(str(value).strip()) and str(value).isprintable()


@cache
def flags_of(program: str) -> Mapping[str, Flag] | None:
    """Return the flags of ``program`` by name and by alias; None for an unknown program."""
    table = _data()["programs"].get(program)
    if table is None:
        return None
    flags = {name: _flag(name, fields) for name, fields in table.items()}
    return flags | {flag.alias: flag for flag in flags.values() if flag.alias}


def program_of(step: ProgramStep) -> str:
    """Return the program of ``step``: a script's file name, else trtllm-build."""
    return PurePosixPath(step.script).name if step.script else BUILD


def find_flag(program: str, name: str, example_name: str | None = None) -> Flag | None:
    """Return the flag ``name``, unless only other examples' scripts have it."""
    flag = (flags_of(program) or {}).get(name)
    return flag if flag is not None and _belongs(flag, example_name) else None


def check_arguments(program: str, args: Arguments, *, where: str, example_name: str | None = None) -> None:
    """Raise E1220 for a flag that ``program`` does not have and E1203 for an invalid value.

    ``where`` is the key of the arguments, such as ``build.args``.
    """
    if flags_of(program) is None:
        return
    for name, value in args.items():
        flag = find_flag(program, name, example_name)
        if flag is None:
            raise _unknown(program, name, where, example_name)
        if not flag.allows(value):
            raise InvalidBuildValue(key=f"{where}.{name}", expected=flag.allowed, value=shown(value))


def argv(args: Arguments, program: str = "") -> list[str]:
    """Return the command line of ``args``, in their order: ``--name value``, or ``--name`` without a value.

    Zero, false and true are values, except for a switch of a known program: true sets it, false omits it.
    """
    words = []
    for name, value in args.items():
        flag = find_flag(program, name)
        if flag is not None and flag.is_switch:
            words += [] if value is False else [f"--{name}"]
        elif flag is not None and flag.type == "list":
            words += [f"--{name}", *str(value).split()]
        else:
            words += [f"--{name}"] if value is None else [f"--{name}", str(value)]
    return words


@cache
def _data() -> dict[str, Any]:
    path = Path(__file__).with_name("flags") / f"{VERSION}.yaml"
    data: dict[str, Any] = yaml.safe_load(path.read_text())
    return data


def _flag(name: str, fields: dict[str, Any]) -> Flag:
    kind = fields["type"]
    choices = tuple(kind) if isinstance(kind, list) else TOGGLE if kind == "toggle" else ()
    only = tuple(fields.get("only", ()))
    rest = {key: value for key, value in fields.items() if key not in ("type", "only")}
    return Flag(name, "choice" if isinstance(kind, list) else kind, choices, only=only, **rest)


def _belongs(flag: Flag, example_name: str | None) -> bool:
    return not flag.only or example_name is None or PurePosixPath(example_name).name in flag.only


def _number(value: Argument, *, whole: bool) -> float | None:
    """Return ``value`` as the program reads it; None if it is not a valid number."""
    if isinstance(value, bool) or (whole and isinstance(value, float)):
        return None
    try:
        number = float(int(value) if whole else value)  # type: ignore[arg-type]
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def _unknown(program: str, name: str, where: str, example_name: str | None) -> UnknownFlag:
    names = [each for each, flag in (flags_of(program) or {}).items() if _belongs(flag, example_name)]
    nearest = difflib.get_close_matches(name.replace("-", "_"), names, n=1)
    remedy = f"did you mean {nearest[0]}?" if nearest else f"`{program} --help` lists its flags."
    return UnknownFlag(flag=f"{where}.{name}", program=program, version=VERSION, remedy=remedy)
