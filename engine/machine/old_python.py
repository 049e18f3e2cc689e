"""Commands that are started with a Python that is too old for the rest. Python 3.8 can run this module."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from engine.machine.root import SET_UP, SOURCE_ROOT
from errors.settings import MissingRequirement

_OLDEST = (3, 10)


def leave_old_python(module: str, arguments: Sequence[str]) -> None:
    """Run ``python -m module`` with the Python of ``.venv`` instead, if this one is too old.

    Without a ``.venv``, print a coded error and exit with status 2.
    """
    if sys.version_info >= _OLDEST:
        return
    ours = SOURCE_ROOT / ".venv" / "bin" / "python"
    if os.access(ours, os.X_OK):
        os.execv(ours, [str(ours), "-m", module, *arguments])  # noqa: S606 - never a shell
    version = "{}.{}.{}".format(*sys.version_info)
    what = f"Python 3.10, 3.11 or 3.12 (this is {version}, {sys.executable})"
    print(MissingRequirement(what=what, remedy=SET_UP), file=sys.stderr)
    sys.exit(2)
