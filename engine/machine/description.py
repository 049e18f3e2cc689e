"""The machine on which figures were measured: every table names it."""

import os
import platform
import re
from pathlib import Path


def machine() -> str:
    """Return processor, how many of its threads we may use, memory and Python."""
    cpus = len(os.sched_getaffinity(0))
    memory_gib = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / (1 << 30)
    return f"{_processor()}, {cpus} CPUs, {memory_gib:.0f} GiB, Python {platform.python_version()}"


def _processor() -> str:
    match = re.search(r"^model name\s*: (.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return match[1].strip() if match else platform.machine()
