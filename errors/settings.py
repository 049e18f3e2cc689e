"""10xx: settings, ports and what a machine must provide."""

from __future__ import annotations

from errors.coded_error import CodedError

_AS_DESCRIBED = "correct it as docs/rehearse.md describes"


class InvalidSetting(CodedError):
    code = "E1006"
    summary = "A setting (environment variable or configuration key) has an invalid value"
    template = "{name} must be {expected}, but is {value!r}."


class PortInUse(CodedError):
    code = "E1007"
    summary = "A port is already taken by another program"
    template = (
        "Port {port} for {purpose} is already in use; "
        "stop the program that holds it or set {variable} to a free port{also}."
    )


class MissingRequirement(CodedError):
    code = "E1008"
    summary = "This machine lacks something that is required"
    template = "{what} was not found; {remedy}."


class InvalidScript(CodedError):
    code = "E1010"
    summary = "A script of the paced engine (COG_TRITON_SCRIPT, or in a prompt) is invalid"
    template = "{where} is no valid script: {reason}; {remedy}."

    def __init__(self, *, where: str, reason: str | None, remedy: str = _AS_DESCRIBED) -> None:
        super().__init__(where=where, reason=reason, remedy=remedy)
