"""14xx: images and their registry, what the caller can change; 25xx: what the registry does wrong."""

from errors.coded_error import CodedError


class ImageReferenceInvalid(CodedError):
    code = "E1401"
    summary = "The reference of an image is missing or can't be read"
    template = "{name} must be {expected}, but is {value!r}."


class ImageNotFound(CodedError):
    code = "E1402"
    summary = "The registry has no such image"
    template = "The registry has no {reference}; check its name and tag, and push it there if it is new."


class RegistryAccessDenied(CodedError):
    code = "E1403"
    summary = "The registry denies read or write access"
    template = (
        "{host} refuses to {action} (HTTP {status}); log in with `docker login {host}`, "
        "or ask for the right to do that."
    )


class ImageUnsuitable(CodedError):
    code = "E1404"
    summary = "An image can't be instantiated"
    template = "{reference} {reason}; the base must be a runner image of cog-triton for linux/amd64."


class BaseElsewhere(CodedError):
    code = "E1405"
    summary = "Base image and new image are in different registries"
    template = (
        "{base} and {destination} are in different registries, so the base's layers would have to be "
        "downloaded; push the base image to {host} first and name it there."
    )


class RegistryFailed(CodedError):
    code = "E2501"
    summary = "The registry can't be reached or sends an invalid answer"
    template = "{host} failed to {action} ({reason}); try again, and ask its operator if that does not help."
