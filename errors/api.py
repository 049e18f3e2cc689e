"""16xx and 26xx: what the API server refuses, and what it can fail with."""

from errors.coded_error import CodedError


class InvalidBody(CodedError):
    code = "E1600"
    summary = "The body of a request can't be read"
    template = "The request's body can't be read: {reason}."


class UnknownField(CodedError):
    code = "E1601"
    summary = "A field of a request is unknown or not supported by this server"
    template = "The field {name} is not supported by this server; {remedy}."


class UnsupportedField(CodedError):
    code = "E1602"
    summary = "The engine that serves this model does not support a field of a request"
    template = "The field {name} ({value!r}) is not supported by the {engine_kind} engine; {remedy}."


class UnknownModel(CodedError):
    code = "E1603"
    summary = "This server has no model of that name"
    template = "The model {model!r} is not served here; use {served}."


class InvalidAPIKey(CodedError):
    code = "E1604"
    summary = "The API key is missing or wrong"
    template = (
        "The API key is missing or wrong; "
        "send one of this server's API_KEYS as `Authorization: Bearer KEY` or `x-api-key: KEY`."
    )


class UnknownEndpoint(CodedError):
    code = "E1605"
    summary = "There is no such endpoint"
    template = "There is no {method} {path}; {remedy}"

    def __init__(self, remedy: str = "see GET /openapi.json for what there is.", **facts: object) -> None:
        super().__init__(remedy=remedy, **facts)


class BodyTooLarge(CodedError):
    code = "E1606"
    summary = "The body of a request exceeds the server's limit"
    template = (
        "The request's body has more than {max_bytes} bytes; send less, or raise OPENAI_MAX_BODY_BYTES."
    )


class TooManyRequests(CodedError):
    code = "E1607"
    summary = "The server is processing its maximum number of requests"
    template = (
        "{running} texts are being generated, and with {asked} more it would be above {most}; "
        "send the request again later, or raise OPENAI_MAX_REQUESTS."
    )


class UnsupportedContentType(CodedError):
    code = "E1608"
    summary = "The body of a request is not declared as JSON"
    template = "The content type {given!r} is not supported; send JSON with `Content-Type: application/json`."


class HostNotAllowed(CodedError):
    code = "E1609"
    summary = "The server does not answer for the host name of a request"
    template = (
        "This server does not answer for the host {host!r}; use localhost, or add the name to ALLOWED_HOSTS."
    )


class InvalidHTTP(CodedError):
    code = "E1610"
    summary = "A request is not valid HTTP, or too many were sent without waiting for answers"
    template = "The request is not valid HTTP: {reason}; send one valid request after the other."


class HeaderTooLarge(CodedError):
    code = "E1611"
    summary = "The head of a request exceeds the server's limit"
    template = (
        "The request has more than 100 headers, or its line and headers more than {max_bytes} bytes; "
        "send less, or raise OPENAI_MAX_HEADER_BYTES."
    )


class RequestNotReceived(CodedError):
    code = "E1612"
    summary = "A request did not arrive in time"
    template = (
        "The request did not arrive within {timeout_s:g} s; send it faster, or raise OPENAI_RECEIVE_TIMEOUT."
    )


class TooManyConnections(CodedError):
    code = "E1613"
    summary = "The server has its maximum number of connections"
    template = (
        "All {max_connections} connections of this server wait for answers; "
        "send the request again later, or raise OPENAI_MAX_CONNECTIONS."
    )


class ReceivingTooMuch(CodedError):
    code = "E1614"
    summary = "The server is receiving more data than it has room for, and this request arrives slowest"
    template = "Large requests of other clients arrive faster than this one; send the request again later."


class UnsupportedHTTP(CodedError):
    """An error whose fact ``status`` is the HTTP status."""

    code = "E1615"
    summary = "A request needs a part of HTTP that this server does not support"
    template = "The {what} is not supported by this server; {remedy}."


class AdminKeyNotSet(CodedError):
    code = "E1616"
    summary = "An endpoint for administrators is closed, because the server has no admin key"
    template = "{path} is closed; set ADMIN_API_KEYS and send one of these keys."


class InvalidAdminKey(CodedError):
    code = "E1617"
    summary = "The admin key is missing or wrong"
    template = (
        "The admin key of {path} is missing or wrong; "
        "send one of this server's ADMIN_API_KEYS as `Authorization: Bearer KEY` or `x-api-key: KEY`."
    )


class OpenAIServerFailed(CodedError):
    code = "E2600"
    summary = "The process of the OpenAI-compatible API did not become ready"
    template = "The OpenAI-compatible API did not become ready: {reason}. Its last log lines: {log_tail}"


class RequestTimedOut(CodedError):
    code = "E2601"
    summary = "A request took longer than the server allows"
    template = "The request took longer than {timeout_s:g} s; ask for fewer tokens, or raise OPENAI_TIMEOUT."


class InternalError(CodedError):
    code = "E2602"
    summary = "The server failed on a request with an unexpected error; its log has the cause"
