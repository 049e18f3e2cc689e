"""23xx: failures while an engine is built."""

from errors.coded_error import CodedError


class DownloadFailed(CodedError):
    code = "E2301"
    summary = "A download from the Hugging Face Hub did not finish"
    template = "Downloading {what} from {endpoint} failed ({reason}); {remedy}."


class DownloadCorrupt(CodedError):
    code = "E2302"
    summary = "A downloaded file differs from the file that the Hugging Face Hub announced"
    template = (
        "{name} of {model_id} arrived with {algorithm} {actual}, but the Hub announces {expected}; "
        "the file was thrown away, start the build again to fetch it anew."
    )


class ConversionFailed(CodedError):
    code = "E2303"
    summary = "A program of the engine environment that converts a model's files failed"
    template = "{what} failed ({reason}). Its last lines: {log_tail}"


class UploadFailed(CodedError):
    code = "E2304"
    summary = "The finished engine could not be uploaded"
    template = "engine.tar could not be uploaded to {url} ({reason}); it is kept as {path}."


class NotEnoughSpace(CodedError):
    code = "E2305"
    summary = "The disk has not enough free space for the build"
    template = (
        "{folder} has {free} free, but {purpose} takes {needed}; "
        "free some space or set {variable} to a folder on a larger disk."
    )


class BuildFailed(CodedError):
    code = "E2306"
    summary = "A file or folder of the build can't be read or written"
    template = "The build stopped ({reason}); check that {path} can be read and written and start it again."


class ProgramFailed(CodedError):
    code = "E2307"
    summary = "A program of a build step failed"
    template = "Step {step} failed after {elapsed} ({reason}). Its last lines: {log_tail}"


class OutOfMemory(CodedError):
    code = "E2308"
    summary = "A program of a build step ran out of memory"
    template = (
        "Step {step} ended after {elapsed} ({reason}), out of memory: it needed about {needed}, "
        "this machine has {present}; {remedy}."
    )


class ProgramMissing(CodedError):
    code = "E2309"
    summary = "The engine environment lacks TensorRT-LLM or has another version than this builder knows"
    template = "{what} ({reason}); build with the cog-triton-builder image or set {variable}."


class EngineUnsound(CodedError):
    code = "E2310"
    summary = "A built checkpoint or engine differs from the build config"
    template = "What step {step} wrote is unsound: {problem}; nothing was packed."


class BuilderBusy(CodedError):
    code = "E2311"
    summary = "A builder does one build at a time"
    template = "A build that writes {path} is running already; wait for its end or use another builder."
