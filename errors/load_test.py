"""15xx: load tests and measurements, what the caller can change."""

from errors.coded_error import CodedError


class LoadTargetUnreachable(CodedError):
    code = "E1501"
    summary = "The target of the load test does not answer"
    template = "{url} does not answer ({reason}); start the server there, or name its place with --url."


class LoadTargetRefused(CodedError):
    code = "E1502"
    summary = "The target of the load test rejects its requests"
    template = (
        "{url} rejected the first request ({reason}); wait until the server is ready, or change the options "
        "of the requests."
    )
