"""The parser of every command's options. Standard library only: load tests run with any Python."""

import argparse
import sys
from typing import NoReturn


class Options(argparse.ArgumentParser):
    """A parser that answers a wrong option with one sentence; it shows default values in the help."""

    def __init__(self, name: str, description: str | None) -> None:
        super().__init__(f"python -m perf {name}", description=description, formatter_class=_Help)

    def error(self, message: str) -> NoReturn:
        print(f"{self.prog}: {message} (--help lists the options).", file=sys.stderr)
        raise SystemExit(2)


class _Help(argparse.RawDescriptionHelpFormatter, argparse.ArgumentDefaultsHelpFormatter):
    """Descriptions as they are written; default values where there are any."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        has_default = action.default not in (None, False, "", [], argparse.SUPPRESS)
        return super()._get_help_string(action) if has_default else action.help
