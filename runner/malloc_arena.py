"""One arena of glibc's malloc for Cog's worker, so that its memory stops growing.

Cog gives each prediction that runs at once a thread of its own, and a thread without work ends after 10 s. By
default malloc gives threads up to eight arenas for each processor, and what one arena once needed is of no
use to the others: so a worker that leaks nothing grows for tens of thousands of predictions. The threads
take turns for Python anyway; one arena is enough for them.

malloc reads its settings when a process starts: so Cog's server sets this one for the worker, and the worker
takes it away again, for Triton and the engine have threads that do run at once.
"""

from __future__ import annotations

from collections.abc import MutableMapping

_VARIABLE = "MALLOC_ARENA_MAX"
_OURS = "COG_TRITON_ONE_ARENA"
"""Marks the setting as ours: who runs us may have set it for all."""


def set_for_worker(environment: MutableMapping[str, str]) -> None:
    """Call in Cog's server, before it starts its worker."""
    if _VARIABLE not in environment:
        environment.update({_VARIABLE: "1", _OURS: "1"})


def unset_for_children(environment: MutableMapping[str, str]) -> None:
    """Call in the worker, before it starts a process."""
    if environment.pop(_OURS, None) is not None:
        del environment[_VARIABLE]
