"""21xx: failures of Triton, and of the way to it."""

from errors.coded_error import CodedError


class TritonUnknownError(CodedError):
    code = "E2100"
    summary = "Unknown error"
    template = "Unknown error: {reason}"


class TritonTimeout(CodedError):
    code = "E2101"
    summary = "Triton timed out after {TRITON_TIMEOUT}s: httpx.ReadTimeout."
    template = "{who} timed out after {timeout_s:g}s: {reason}. Raise TRITON_TIMEOUT to wait longer."


class TritonTokenizerError(CodedError):
    code = "E2102"
    summary = (
        "Tokenizer error: ... the first token of the stop sequence IDs was not '!', "
        "which suggests there is a problem with the tokenizer that you are using."
    )
    template = "Tokenizer error: {reason}"


class TritonMalformedJSON(CodedError):
    code = "E2103"
    summary = "Triton returned malformed JSON"
    template = "Triton returned malformed JSON or protobuf: {data!r}"


class TritonMalformedEvent(CodedError):
    code = "E2104"
    summary = "Triton returned malformed event (no output_ids or error key)"
    template = "Triton returned malformed event (no output_ids or error key): {event!r}"


class TritonUnavailable(CodedError):
    code = "E2105"
    summary = "Triton stopped, can't be reached or lost a request; send again what was in flight"
    template = (
        "Triton can't be reached or lost the request ({reason}); "
        "send the request again: if Triton has stopped, it is restarted automatically."
    )


class StartFailed(CodedError):
    code = "E2106"
    summary = "Triton or Cog's server did not become ready"
    template = "{who} did not become ready: {reason}. Its last log lines: {log_tail}"


class ServerStopping(CodedError):
    code = "E2110"
    summary = (
        "The server is shutting down: it rejects new requests and ends those that exceed the grace period"
    )
    template = "The server stops ({reason}); send the request again, to another server."


class ServerEnded(CodedError):
    code = "E2111"
    summary = "The Cog server ended by itself after it had been ready"
    template = (
        "The {kind}'s Cog server ended by itself after it had been ready ({reason}); its log: {log_path}"
    )
