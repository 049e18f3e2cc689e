"""Cog's HTTP server for the builder: ``python -m builder.cog_server [OPTION...]``.

It checks the variables with which that server would end in a traceback, then runs ``cog.server.http`` with
the same options.
"""

import os
import re
import runpy
import sys
from collections.abc import Mapping

from engine.machine.cog_sockets import await_turn
from errors.settings import InvalidSetting

_WRONG_INPUT = 2
"""Exit code of an invalid setting."""
_HIGHEST = {"PORT": 65_535, "COG_MAX_CONCURRENCY": 10_000, "TOKIO_WORKER_THREADS": 1024}


def check(environment: Mapping[str, str]) -> None:
    """Raise InvalidSetting (E1006) if a variable is invalid."""
    for name, highest in _HIGHEST.items():
        value = environment.get(name, "1")
        if not re.fullmatch("[0-9]{1,9}", value) or not 1 <= int(value) <= highest:
            raise InvalidSetting(name=name, expected=f"a whole number from 1 to {highest}", value=value)


def main() -> None:
    try:
        check(os.environ)
    except InvalidSetting as exc:
        print(exc, file=sys.stderr)
        sys.exit(_WRONG_INPUT)
    await_turn()
    runpy.run_module("cog.server.http", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
