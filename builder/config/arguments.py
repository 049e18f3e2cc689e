"""Arguments of an engine's library in a build config: their types, and those that a config can't set.

A JSON file beside the library's own module has its arguments, with their types and bounds.
"""

import difflib
import json
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import NoneType
from typing import Any

from builder.config.config import BuildConfig, shown
from errors.build_config import ConflictingBuildKeys, InvalidBuildValue, UnknownBuildKey

_TYPES: Mapping[str, tuple[str, tuple[type, ...]]] = {
    "boolean": ("true or false", (bool,)),
    "integer": ("a whole number", (int,)),
    "number": ("a number", (int, float)),
    "string": ("text", (str,)),
    "array": ("a list", (list,)),
    "object": ("a mapping", (dict,)),
    "null": ("empty", (NoneType,)),
}
"""JSON type -> words for it and Python's types."""
_BOUNDS: Mapping[str, tuple[str, Callable[[float, float], bool]]] = {
    "ge": ("at least {}", operator.ge),
    "gt": ("above {}", operator.gt),
    "le": ("at most {}", operator.le),
    "lt": ("below {}", operator.lt),
}


def by_name(reasons: Mapping[str, str]) -> dict[str, str]:
    """Map each argument to its reason, from the arguments of each reason."""
    return {name: reason for reason, names in reasons.items() for name in names.split()}


@dataclass(frozen=True)
class ArgumentTable:
    """The arguments that a section of a build config may have."""

    section: str
    file: Path
    library: str
    """The library's name in the file."""
    words: str
    """The library's name for people."""
    list_in: str
    """Document with a link to the list."""
    same: Mapping[str, str]
    """Keys of every engine kind, and their names here."""
    decided: Mapping[str, str]
    """Arguments that can't be set, with a reason."""
    without_effect: Mapping[str, str]
    """Arguments that the library's server honours and this runner can't. Their value may be off or empty."""
    gone: Mapping[str, str]
    """Names of other versions, and what to do."""

    @cached_property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.file.read_text())
        return data

    @property
    def version(self) -> str:
        """Version of the library that has these arguments."""
        return str(self.data[self.library])

    def read(self, config: BuildConfig) -> dict[str, Any]:
        """Return all arguments of the config by the library's names. Raises E1202, E1203 and E1204."""
        arguments = dict(getattr(config, self.section) or {})
        for name, value in arguments.items():
            self.check(name, value)
        for key, name in self.same.items():
            given = getattr(config, key)
            if given is None:
                continue
            if arguments.setdefault(name, given) != given:
                twice = f"{key} {given} and {self.section}.{name} {arguments[name]}"
                raise ConflictingBuildKeys(
                    problem=f"gives {twice}, which are the same", remedy="leave one of them out"
                )
        if config.trust_remote_code:
            arguments["trust_remote_code"] = True
        return arguments

    def check(self, name: str, value: object) -> None:
        """Raise E1202, E1203 or E1204 for an argument that is unknown, wrong or can't be set."""
        if name in self.decided:
            raise self._left_out(name, self.decided[name])
        if name in self.without_effect and value not in (None, False, {}, []):
            raise self._left_out(name, self.without_effect[name])
        known = self.data["arguments"]
        if name not in known:
            raise UnknownBuildKey(
                key=name, where=f"{self.words} {self.version}'s engine arguments", remedy=self._near(name)
            )
        self._check_value(f"{self.section}.{name}", known[name], value)

    def _check_value(self, name: str, described: Mapping[str, Any], value: object) -> None:
        """Raise E1202 or E1203 for a value, or one in the mapping that it is, that is not as described."""
        problem = _problem(described, value)
        if problem is not None:
            raise InvalidBuildValue(key=name, expected=problem, value=shown(value))
        keys = described.get("keys", ())
        for given, inner in value.items() if keys and isinstance(value, dict) else ():
            key = str(given).replace("-", "_") if described.get("dashes") else given
            if key not in keys:
                remedy = nearest(str(key), keys) or f"its keys are {', '.join(keys)}."
                raise UnknownBuildKey(key=str(given), where=name, remedy=remedy)
            if isinstance(keys, dict):
                self._check_value(f"{name}.{key}", keys[key], inner)

    def _left_out(self, name: str, reason: str) -> ConflictingBuildKeys:
        return ConflictingBuildKeys(problem=f"gives {self.section}.{name}", remedy=f"leave it out: {reason}")

    def _near(self, name: str) -> str:
        if name in self.gone:
            return self.gone[name] + "."
        names = [each for each in self.data["arguments"] if each not in self.decided]
        return nearest(name, names) or f"{self.list_in} has a link to the list."


def nearest(name: str, names: Iterable[str]) -> str | None:
    """Return a question for the most similar name; None if there is no similar one."""
    found = difflib.get_close_matches(name, list(names), n=1)
    return f"did you mean {found[0]}?" if found else None


def _problem(described: Mapping[str, Any], value: object) -> str | None:
    """Return what the value must be; None if it is, or if nothing describes it."""
    if not described:
        return None
    if not any(_is(kind, value) for kind in described["types"]):
        return " or ".join(_TYPES[kind][0] for kind in described["types"])
    choices = described.get("choices")
    if choices is not None and value is not None and not _is_one_of(choices, described, value):
        near = difflib.get_close_matches(str(value), map(str, choices), n=1)
        return f"{near[0]} (the nearest), or another" if near and len(choices) > 12 else f"one of {choices}"
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        if not abs(value) < 1 << 64:
            return "a finite number of at most 64 bits"
        for bound, (text, holds) in _BOUNDS.items():
            if bound in described and not holds(value, described[bound]):
                return text.format(described[bound])
    return None


def _is_one_of(choices: Sequence[Any], described: Mapping[str, Any], value: object) -> bool:
    """Compare texts as the library does: of some arguments in any case, of some with dashes."""
    if not described.get("any_case") or not isinstance(value, str):
        return value in choices
    text, known = value.lower(), [str(choice).lower() for choice in choices]
    return text in known or (described.get("dashes", False) and text.replace("-", "_") in known)


def _is(kind: str, value: object) -> bool:
    return kind == "boolean" if isinstance(value, bool) else isinstance(value, _TYPES[kind][1])
