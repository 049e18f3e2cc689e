"""13xx: what can be wrong with the source of an engine."""

from errors.coded_error import CodedError


class SourceUnsupported(CodedError):
    code = "E1314"
    summary = "An engine's source is neither a path nor an http, https or file URL"
    template = "{source!r} can't be fetched: {reason}; give a path or an http, https or file URL."


class SourceUnreachable(CodedError):
    code = "E1315"
    summary = "The server of the engine can't be reached"
    template = "{source} can't be reached: {reason}; check the URL and the network, then try again."


class SourceNotFound(CodedError):
    code = "E1316"
    summary = "The server has no engine at this URL"
    template = "{source} does not exist (HTTP {status}); check the URL."


class SourceForbidden(CodedError):
    code = "E1317"
    summary = "The server denies access to the engine (credentials missing, wrong or expired)"
    template = "{source} is refused (HTTP {status}): {reason}."


class SourceFailed(CodedError):
    code = "E1318"
    summary = "The server of the engine answers with an error"
    template = "{source} answered {reason}; try again later or use another server."


class SourceInterrupted(CodedError):
    code = "E1319"
    summary = "A download was interrupted and could not be resumed"
    template = "{source} broke off after {received_bytes} of {size_bytes} bytes ({reason}); try again."


class SourceChanged(CodedError):
    code = "E1320"
    summary = "The engine behind a URL changed while it was downloaded"
    template = "{source} changed during the download ({reason}); try again once its upload is finished."


class RedirectRefused(CodedError):
    code = "E1321"
    summary = "A URL redirects too often or to a forbidden address"
    template = "{source} redirects {reason}; give the final URL."


class AddressRefused(CodedError):
    code = "E1327"
    summary = "A caller's URL leads to an address that is not on the internet"
    template = (
        "{host} is at {address}, an address that callers' URLs must not lead to: use a public URL, "
        "or, if you run this server and trust its callers, set {variable}=true."
    )
