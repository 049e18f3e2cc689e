"""12xx: what can be wrong with a build config and with what it points to."""

from errors.coded_error import CodedError


class BuildConfigUnreadable(CodedError):
    code = "E1201"
    summary = "The build config can't be read as a YAML mapping"
    template = "The build config {source} can't be read: {reason}."


class UnknownBuildKey(CodedError):
    code = "E1202"
    summary = "The build config has a key that does not exist"
    template = "{key} is not a key of {where}; {remedy}"


class InvalidBuildValue(CodedError):
    code = "E1203"
    summary = "A key of the build config has an invalid value"
    template = "{key} must be {expected}, but is {value}."


class ConflictingBuildKeys(CodedError):
    code = "E1204"
    summary = "Keys of the build config are missing or exclude each other"
    template = "The build config {problem}; {remedy}."


class ModelPathInvalid(CodedError):
    code = "E1205"
    summary = "model_path is not a model folder inside the folder it is relative to"
    template = "model_path {model_path!r} {problem}; {remedy}."


class ModelNotFound(CodedError):
    code = "E1206"
    summary = "The Hugging Face Hub has no such model or revision"
    template = "{endpoint} has no model {model_id!r} at revision {revision!r}; check its name and revision."


class ModelAccessDenied(CodedError):
    code = "E1207"
    summary = "The Hugging Face Hub denies access to the model"
    template = (
        "{endpoint} denies access to model {model_id!r} (HTTP {status}): it is private, gated or misspelt; "
        "{remedy}."
    )


class WeightFormatMissing(CodedError):
    code = "E1208"
    summary = "The model has no weights in the requested format"
    template = "{model} has no weights in format {weight_format}; {remedy}."


class ModelUnusable(CodedError):
    code = "E1210"
    summary = "The model's files are incomplete or contradict each other"
    template = "{model} can't be built: {problem}."


class TokenizerUnusable(CodedError):
    code = "E1211"
    summary = "The model has no tokenizer that can be converted to a fast one"
    template = "{model} gives no fast tokenizer: {problem}."


class ModelTarUnavailable(CodedError):
    code = "E1212"
    summary = "model_tar_url can't be downloaded or is not a tar of a model"
    template = "model_tar_url {url} can't be used: {reason}."


class GgufUnsupported(CodedError):
    code = "E1213"
    summary = "The model's GGUF file has an architecture, quantization or tokenizer that is not supported"
    template = "{model} can't be built: its GGUF file has {found}, which is not supported; {remedy}."


class UnknownFlag(CodedError):
    code = "E1220"
    summary = "A program of TensorRT-LLM has no such flag"
    template = "{flag} is not a flag of {program} in TensorRT-LLM {version}; {remedy}"


class WorldSizeMismatch(CodedError):
    code = "E1221"
    summary = "Keys of the build config contain different numbers of GPUs"
    template = "{asked}, but {found}; {remedy}."


class QuantizationUnsupported(CodedError):
    code = "E1222"
    summary = "The GPU or this TensorRT-LLM does not support the requested quantization"
    template = "{key}: {value} needs {needed}, but {found}; {remedy}."


class SequenceTooLong(CodedError):
    code = "E1223"
    summary = "A sequence length exceeds the model's number of positions"
    template = "{key} is {value}, but the model has {limit} positions (max_position_embeddings); {remedy}."


class ModelTooLarge(CodedError):
    code = "E1230"
    summary = "The model's weights do not fit the memory of the target GPUs"
    template = (
        "{model} takes {needed} of weights per GPU as planned, but {gpu} has {present}; "
        "quantize it, split it over more GPUs (tp_size) or choose a larger GPU."
    )


class ModelDoesNotFit(CodedError):
    code = "E1234"
    summary = "A model does not fit the GPUs or the memory of this machine"
    template = "{model} takes {needed}, but {present}; {remedy}."


class BuildGpuMissing(CodedError):
    code = "E1231"
    summary = "An engine can only be compiled on a GPU of its target architecture"
    template = "This engine can't be compiled here: it needs {needed}, but {found}; {remedy}."


class ScriptUnavailable(CodedError):
    code = "E1232"
    summary = "A build step needs a script of TensorRT-LLM that is not installed"
    template = "{key} runs {script}, {problem}; {remedy}."
