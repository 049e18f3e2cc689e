"""The command: `slim --sm 86 DIR...` slims, `slim --check 86 DIR...` says whether a tree is slim.

Exit status: 0 done (or slim), 1 not slim, 2 wrong command line, 3 refused. All libraries are read before the
first is replaced, so a refusal means that nothing was changed; only an error while writing (a full disk, say)
leaves some libraries replaced and some not, each whole, and running again finishes the rest.
"""

import argparse
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from .debug import drop_debug
from .elf import SlimError
from .library import Survey, survey
from .rewrite import UNFINISHED_SUFFIX, rewrite
from .rule import KNOWN_SMS

DONE, NOT_SLIM, REFUSED = 0, 1, 3

_COLUMNS = ("containers", "empty", "compiled", "kept", "dropped")
_LEGEND = (
    "in bytes of device code; empty: with nothing for this GPU; compiled: containers of PTX alone,\n"
    "compiled when loaded; dropped: zeros now"
)

_T = TypeVar("_T")
_R = TypeVar("_R")


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    try:
        if options.check is not None:
            return _check(options.paths, options.check, options.jobs)
        if options.drop_debug:
            dropped = [size for size in _each(drop_debug, _files(options.paths), options.jobs) if size]
            print(f"{sum(dropped):,} bytes of debug information removed from {len(dropped)} files")
        return _slim(options.paths, options.sm, options.jobs)
    except (SlimError, OSError) as error:
        print(f"slim: {error}", file=sys.stderr)
        return REFUSED


def _slim(paths: Sequence[Path], sm: int, jobs: int) -> int:
    surveys = _surveys(paths, sm, jobs)
    if any(one.dropped for one in surveys) and not any(one.kept for one in surveys):
        raise SlimError(f"no library here has device code for SM {sm}; is it the right architecture?")
    _each(partial(rewrite, sm=sm), [one for one in surveys if one.cuts], jobs)
    _print_table(surveys, paths)
    return DONE


def _check(paths: Sequence[Path], sm: int, jobs: int) -> int:
    surveys = _surveys(paths, sm, jobs)
    _print_table(surveys, paths)
    findings = [
        f"{one.path} has {one.dropped:,} bytes that SM {sm} does not need" for one in surveys if one.cuts
    ]
    findings += [f"{file} is of a run that was stopped" for file in _files(paths) if _is_unfinished(file)]
    for finding in findings:
        print(f"slim: {finding}", file=sys.stderr)
    return NOT_SLIM if findings else DONE


def _surveys(paths: Sequence[Path], sm: int, jobs: int) -> list[Survey]:
    files = [file for file in _files(paths) if not _is_unfinished(file)]
    return [one for one in _each(partial(survey, sm=sm), files, jobs) if one is not None]


def _each(function: Callable[[_T], _R], items: Sequence[_T], jobs: int) -> list[_R]:
    """Return the results in the order of `items`, from as many processes as `jobs` says."""
    if jobs == 1 or len(items) < 2:
        return [function(item) for item in items]
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(function, items))


def _files(paths: Sequence[Path]) -> list[Path]:
    """Return the regular files at and under the paths, each once, sorted; links are not followed."""
    found: set[Path] = set()
    for path in map(Path.resolve, paths):
        if path.is_file():
            found.add(path)
        elif not path.is_dir():
            raise SlimError(f"{path}: no such file or folder")
        for folder, _, names in os.walk(path):
            files = (Path(folder, name) for name in names)
            found.update(file for file in files if file.is_file() and not file.is_symlink())
    return sorted(found)


def _is_unfinished(file: Path) -> bool:
    return file.name.endswith(UNFINISHED_SUFFIX)


def _print_table(surveys: Sequence[Survey], paths: Sequence[Path]) -> None:
    """Print a line per library with device code, in the order given, then sums and what the columns mean."""
    base = Path(os.path.commonpath([path.resolve() for path in paths]))
    base = base.parent if base.is_file() else base
    shown = [one for one in surveys if one.containers]
    rows = [[getattr(one, column) for column in _COLUMNS] for one in shown]
    sums = [sum(column) for column in zip(*rows, strict=True)] or [0] * len(_COLUMNS)
    lines = [["library", *_COLUMNS]]
    for name, numbers in zip(
        [*(one.path.relative_to(base) for one in shown), "total"], [*rows, sums], strict=True
    ):
        lines.append([str(name), *(f"{number:,}" for number in numbers)])
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for name, *cells in lines:
        numbers = [cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True)]
        print("  ".join([name.ljust(widths[0]), *numbers]))
    print(_LEGEND)


def _jobs(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of processes")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="slim",
        description="Keeps in every shared library only the device code that one GPU architecture runs.",
        epilog="Exit status: 0 done or slim, 1 not slim, 2 wrong command line, 3 refused.",
    )
    what = parser.add_mutually_exclusive_group(required=True)
    known: dict[str, Any] = {"type": int, "choices": sorted(KNOWN_SMS), "metavar": "SM"}
    what.add_argument("--sm", **known, help="slim to this architecture, such as 86 for sm_86")
    what.add_argument("--check", **known, help="only say whether everything is slim for it")
    parser.add_argument("--drop-debug", action="store_true", help="with --sm: remove debug information first")
    parser.add_argument("-j", "--jobs", type=_jobs, default=1, help="libraries at a time (default: 1)")
    parser.add_argument("paths", type=Path, nargs="+", metavar="PATH", help="a library, or a folder of them")
    return parser
