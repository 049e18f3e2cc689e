"""Write generated files, or check that they are current."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path


def write_or_check(
    make: Callable[[], Mapping[str, str]], root: Path, arguments: Sequence[str] | None, *, description: str
) -> int:
    """Write the stale files among ``make()``: texts by path below ``root``. ``--check`` only reports them."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if a file is stale")
    is_check = parser.parse_args(arguments).check
    is_stale = False
    for name, text in make().items():
        path = root / name
        if path.is_file() and path.read_text() == text:
            continue
        is_stale = True
        if not is_check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
        print(f"{'stale' if is_check else 'written'}: {name}")
    return int(is_check and is_stale)
