"""13xx: what an engine needs that the GPUs here lack."""

from errors.coded_error import CodedError


class WrongGpuArchitecture(CodedError):
    code = "E1322"
    summary = "The engine was compiled for another GPU architecture"
    template = (
        "The engine was built for SM {built_for}, this GPU is SM {present}: "
        "{remedy}, or rebuild it on this GPU."
    )


class GpuRequired(CodedError):
    code = "E1323"
    summary = "The engine needs an NVIDIA GPU and there is none"
    template = (
        "A {engine_kind} engine needs an NVIDIA GPU and none is visible here; use a machine with a GPU (for "
        "a container: --gpus=all), or {remedy}."
    )

    def __init__(self, *, engine_kind: str, remedy: str = "an engine of kind transformers") -> None:
        super().__init__(engine_kind=engine_kind, remedy=remedy)


class WrongLibraryVersion(CodedError):
    code = "E1324"
    summary = "The engine was built with another version of its library than the installed one"
    template = (
        "The engine was built with {library} {built_with}, here is {present}, and a compiled engine runs on "
        "no other version: serve it with the image that has {built_with}, or {rebuild}."
    )


class WrongImage(CodedError):
    code = "E1330"
    summary = "The image has no code for this GPU"
    template = (
        "The image {image} has code for GPUs of SM {built_for} only, and {gpu} is SM {present}: {remedy}."
    )


class TooFewGpus(CodedError):
    code = "E1325"
    summary = "The engine was built for more GPUs than this machine has"
    template = (
        "The engine was built for {world_size} GPUs and {present} visible here: start the container with "
        "--gpus=all on a machine that has as many, or rebuild it with tp_size x pp_size = {present_count}."
    )


class GpuMemoryTooSmall(CodedError):
    code = "E1326"
    summary = "A GPU has less free memory than the engine's weights need"
    template = (
        "Rank {rank} of the engine takes {needed} and GPU {device} has {free} free: end what else uses "
        "that GPU, use a larger one, or rebuild the engine quantized or for more GPUs."
    )
