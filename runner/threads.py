"""Settings of Python itself for a process whose many threads mostly wait."""

from __future__ import annotations

import gc
import sys

_SWITCH_INTERVAL_S = 0.1
_COLLECT_AFTER_OBJECTS = 50_000


def run_many_threads() -> None:
    """Call once all that lives long is loaded.

    NOTE: every thread that wants Python's lock wakes once per switch interval to ask for it. Of a few hundred
    that start together, at the default of 5 ms, that is tens of thousands of wakings a second. Ours
    give the lock up by themselves, as soon as they wait for anything.
    """
    sys.setswitchinterval(_SWITCH_INTERVAL_S)
    gc.collect()
    gc.freeze()
    gc.set_threshold(_COLLECT_AFTER_OBJECTS)
