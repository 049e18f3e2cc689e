"""15xx: load tests and measurements, what the caller can change."""

from __future__ import annotations

from errors.coded_error import CodedError


class LoadTargetUnreachable(CodedError):
    code = "E1501"
    summary = "Nothing answers at the place that is to be load-tested"
    template = "{url} does not answer ({reason}); start the server there, or name its place with --url."


class LoadTargetRefused(CodedError):
    code = "E1502"
    summary = "The server refuses the requests of a load test before it has begun"
    template = (
        "{url} refuses a first request of this kind ({reason}); change the options that say what is asked."
    )
