"""The ``cog-triton`` command."""

import argparse
import difflib
import importlib
import re
import signal
import sys
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, version
from types import ModuleType
from typing import NoReturn

from cli.arguments import COMMANDS
from engine.disk import any_disk_error
from engine.live_line import RED, painted
from engine.machine.root import SET_UP, SOURCE_ROOT
from errors.coded_error import CodedError
from errors.settings import MissingRequirement

EXIT_FAILED = 1
EXIT_WRONG_INPUT = 2
EXIT_INTERRUPTED = 130


def make_parser() -> tuple[argparse.ArgumentParser, list[argparse.ArgumentParser]]:
    parser = argparse.ArgumentParser(
        prog="cog-triton",
        description="From a build config to an engine.tar, and from an engine.tar to streamed predictions.",
        epilog="Exit codes: 0 success; 1 failure (E2...); 2 wrong input or usage (E1...); 130 interrupted.",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {_version()}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for name, command in COMMANDS.items():
        parser_of = subparsers.add_parser(name, help=command.help, description=command.description)
        command.add_options(parser_of.add_argument)
    return parser, list(subparsers.choices.values())


def _module(name: str) -> ModuleType:
    """Import the module of a command and all that it needs. Raises E1008 outside of our environment."""
    try:
        return importlib.import_module(f"cli.{name}")
    except ModuleNotFoundError as exc:
        raise MissingRequirement(what=f"the package {exc.name} for {sys.executable}", remedy=SET_UP) from exc


def _version() -> str:
    try:
        return version("cog-triton")
    except PackageNotFoundError:  # This checkout only serves.
        found = re.search(r'^version = "(.+)"', (SOURCE_ROOT / "pyproject.toml").read_text(), re.MULTILINE)
        return found[1] if found else "(unknown)"


def _check_command(given: str, known: Sequence[str]) -> None:
    """End with usage's exit code if there is no such command."""
    if given not in known:
        near = difflib.get_close_matches(given, known, n=1)
        remedy = f"did you mean {near[0]}?" if near else f"there are {', '.join(known)}"
        print(f"cog-triton: no command {given!r}; {remedy}", file=sys.stderr)
        sys.exit(EXIT_WRONG_INPUT)


def _refuse_options(unknown: Sequence[str], parser: argparse.ArgumentParser) -> NoReturn:
    """End with usage's exit code: the command has no such options, or too many arguments were given."""
    option = next((each.partition("=")[0] for each in unknown if each.startswith("-")), None)
    if option is None:
        parser.error(f"too many arguments: {' '.join(unknown)}")
    near = difflib.get_close_matches(option, parser._option_string_actions, n=1)
    remedy = f"did you mean {near[0]}?" if near else "--help shows those that there are"
    parser.error(f"no option {option}; {remedy}")


def main(arguments: Sequence[str] | None = None) -> int:
    given = sys.argv[1:] if arguments is None else list(arguments)
    if given[:1] == ["help"]:
        given = [*given[1:2], "--help"]
    parser, commands = make_parser()
    if given and not given[0].startswith("-"):
        _check_command(given[0], list(COMMANDS))
    options, unknown = parser.parse_known_args(given)
    if unknown:
        _refuse_options(
            unknown, next((each for each in commands if each.prog.endswith(f" {given[0]}")), parser)
        )
    if options.command is None:
        parser.print_help()
        return 0
    # SIGTERM ends a command like Ctrl-C, with clean-up. A script's background job begins with SIGINT ignored.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    try:
        return _module(options.command).run(options) or 0
    except CodedError as exc:
        return _failed(exc)
    except KeyboardInterrupt:
        print("\nstopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader of stdout has exited.
        sys.stderr.close()
        return EXIT_INTERRUPTED
    except OSError as exc:
        # A path that can't even be looked at: its name is too long, or a folder above it is not the user's.
        return _failed(any_disk_error(exc))


def _failed(error: CodedError) -> int:
    print(painted(str(error), RED, sys.stderr), file=sys.stderr)
    return EXIT_WRONG_INPUT if error.code.startswith("E1") else EXIT_FAILED
