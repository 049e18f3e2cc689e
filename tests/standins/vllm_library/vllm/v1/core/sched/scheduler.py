from __future__ import annotations


class Scheduler:
    """Only to be subclassed: the stand-in's core schedules nothing."""

    def get_request_counts(self) -> tuple[int, int]:
        raise NotImplementedError

    def get_kv_cache_usage(self) -> float:
        raise NotImplementedError

    def make_stats(self, *_: object) -> None:
        raise NotImplementedError
