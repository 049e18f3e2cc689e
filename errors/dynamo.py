"""27xx: failures of the Dynamo worker."""

from __future__ import annotations

from errors.coded_error import CodedError


class DynamoWorkerFailed(CodedError):
    code = "E2700"
    summary = "The Dynamo worker did not become ready"
    template = "The Dynamo worker did not become ready: {reason}. Its last log lines: {log_tail}"
