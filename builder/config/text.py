"""Write a build config as YAML text, with a comment for each change that migration made."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import yaml

from builder.config.config import BuildConfig
from builder.trtllm.old.migration import Change

_VERSION = 1


def config_text(config: BuildConfig, changes: Sequence[Change] = ()) -> str:
    """The YAML of ``config``; what ``changes`` dropped becomes a comment."""
    keys = {**config.model_dump(exclude_unset=True), "version": _VERSION}
    ordered = {"version": _VERSION, **{name: value for name, value in keys.items() if value is not None}}
    return "".join(f"{line}\n" for line in _lines(ordered, "", changes))


def _lines(keys: dict[str, Any], path: str, changes: Sequence[Change]) -> Iterator[str]:
    indent = "  " * path.count(".")
    for name, value in keys.items():
        comment = _comment(changes, f"{path}{name}")
        if isinstance(value, dict) and value:
            yield f"{indent}{name}:{comment}"
            yield from _lines(_without_none(value, name), f"{path}{name}.", changes)
        else:
            shown = "" if value is None else f" {_scalar(value)}"
            yield f"{indent}{_scalar(name)}:{shown}{comment}"
    yield from (f"{indent}# {each}".replace(path, "", 1) for each in changes if _was_here(each, path))


def _without_none(section: dict[str, Any], name: str) -> dict[str, Any]:
    """An empty value has a meaning among arguments only: a flag."""
    return section if name == "args" else {key: each for key, each in section.items() if each is not None}


def _comment(changes: Sequence[Change], path: str) -> str:
    comments = [_change_text(each) for each in changes if each.new == path]
    return f"  # {'; '.join(comments)}" if comments else ""


def _change_text(change: Change) -> str:
    """For a renamed or moved key its old name, else the text of the change."""
    place, _, name = change.old.rpartition(".")
    new_place, _, new_name = str(change.new).rpartition(".")
    was = change.old if place != new_place else name
    is_renamed = (place, name) != (new_place, new_name) and change.text.startswith("now ")
    text = f"was {was}" if is_renamed else change.text
    return f"{text}{change.why and f' ({change.why})'}"


def _was_here(change: Change, path: str) -> bool:
    """Whether a dropped key was directly below ``path``."""
    return change.new is None and bool(path) and change.old.rpartition(".")[0] == path.rstrip(".")


def _scalar(value: object) -> str:
    """``value`` on one line, quoted with escapes if it has characters that can't be printed."""
    is_plain = not isinstance(value, str) or value.isprintable()
    style: dict[str, Any] = {"allow_unicode": True} if is_plain else {"default_style": '"'}
    text = str(yaml.safe_dump(value, default_flow_style=True, width=math.inf, **style))
    return text.removesuffix("\n").removesuffix("\n...")
