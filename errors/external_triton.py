"""1113 and 2113: the API server in front of an external Triton."""

from errors.coded_error import CodedError


class UnfitTritonModel(CodedError):
    code = "E1113"
    summary = "A model of an external Triton does not have the tensors of NVIDIA's tensorrt_llm backend"
    template = "The model {model!r} of Triton at {address} {problem}; {remedy}."


class ExternalTritonUnavailable(CodedError):
    code = "E2113"
    summary = "The Triton in front of which the API server runs can't be reached, or is not ready"
    template = "Triton at {address} can't be used ({reason}); {remedy}."
