"""Used in the engine environment: the argument parser of a converter, made from the list of its flags."""

import argparse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

_FLAGS = Path(__file__).resolve().parents[1] / "trtllm" / "flags" / "0.16.0.yaml"


def make_parser(program: str, same: Mapping[str, str] | None = None) -> argparse.ArgumentParser:
    """Make a parser of the flags of ``program`` that need no script; ``same``: other name -> flag."""
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for name, flag in yaml.safe_load(_FLAGS.read_text())["programs"][program].items():
        if flag.get("needs_script"):
            continue
        options: dict[str, Any] = {"dest": (same or {}).get(name, name).replace("-", "_")}
        if flag["type"] == "switch":
            options["action"] = "store_true"
        else:
            options |= {"type": _reader(flag["type"]), "default": flag.get("default")}
        if "bare" in flag:
            options |= {"nargs": "?", "const": flag["bare"]}
        parser.add_argument(f"--{name}", **options)
    return parser


def _reader(kind: str | list[str | int]) -> type:
    if isinstance(kind, list):
        return type(kind[0])
    return {"int": int, "float": float}.get(kind, str)
