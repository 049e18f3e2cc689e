"""1107 to 1112 and 2112: what the front of Triton refuses by itself, and that it did not start."""

from errors.coded_error import CodedError


class InvalidInference(CodedError):
    code = "E1107"
    summary = "A request to Triton can't be read"
    template = "The request can't be read: {reason}."


class UnknownTritonModel(CodedError):
    code = "E1108"
    summary = "Triton has no model of that name"
    template = "Triton has no model {model!r}; {remedy}."


class ClosedEndpoint(CodedError):
    code = "E1109"
    summary = "An endpoint for the management of Triton is closed"
    template = (
        "{endpoint} manages Triton and is closed; set TRITON_MANAGEMENT=true where no stranger can reach "
        "Triton's ports."
    )


class RequestTooLarge(CodedError):
    code = "E1110"
    summary = "A request to Triton exceeds a limit of the server"
    template = "The {part} of the request has more than {max_bytes} bytes; {remedy}."


class TooManyInferences(CodedError):
    code = "E1111"
    summary = "Triton is processing its maximum number of requests"
    template = (
        "{running} requests to Triton are in progress, which is the maximum; send the request again later, "
        "or raise TRITON_MAX_REQUESTS."
    )


class TooManyBytes(CodedError):
    code = "E1112"
    summary = "Triton's clients are sending more than the server holds at once"
    template = "Requests of more than {max_bytes} bytes are arriving at once; send the request again later."


class TritonFrontFailed(CodedError):
    code = "E2112"
    summary = "The process in front of Triton did not become ready"
    template = "The front of Triton did not become ready: {reason}. Its last log lines: {log_tail}"
