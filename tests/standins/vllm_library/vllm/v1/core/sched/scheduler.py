from __future__ import annotations


class Scheduler:
    """Only to be subclassed: the stand-in's core schedules nothing."""
