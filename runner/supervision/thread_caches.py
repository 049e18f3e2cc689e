"""No caches of threads in glibc's malloc, so that the memory of our processes stops growing.

malloc keeps for each thread up to seven freed pieces of each small size. Cog's worker and the slot's stub
have dozens of threads that come and go, and what those freed lies scattered among what lives: so processes
that leak nothing grow for tens of thousands of requests. Figures: docs/measurements/soak.md.

malloc reads its settings when a process starts: so Cog's server sets this one for all that it starts. The
engine is not ours, and its process gets what whoever runs us has set.
"""

from __future__ import annotations

from collections.abc import MutableMapping

_VARIABLE = "GLIBC_TUNABLES"
_NAME = "glibc.malloc.tcache_count"
_OFF = f"{_NAME}=0"


def switch_off(environment: MutableMapping[str, str]) -> None:
    """For the processes that get ``environment``, unless it says how many there are to be."""
    tunables = environment.get(_VARIABLE, "")
    if _NAME not in tunables:
        environment[_VARIABLE] = ":".join(filter(None, [tunables, _OFF]))


def switch_on(environment: MutableMapping[str, str]) -> None:
    """As it was before ``switch_off``."""
    tunables = environment.pop(_VARIABLE, "").split(":")
    if kept := [each for each in tunables if each and each != _OFF]:
        environment[_VARIABLE] = ":".join(kept)
