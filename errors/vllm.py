"""22xx: failures of the vLLM engine."""

from __future__ import annotations

from errors.base import CodedError


class VllmMissing(CodedError):
    code = "E2201"
    summary = "The engine environment has no vLLM that can be imported"
    template = (
        "vLLM can't be imported by {python} ({reason}); install requirements/vllm.txt there, "
        "or name the Python that has it in COG_TRITON_ENGINE_PYTHON."
    )


class VllmArgumentsRefused(CodedError):
    code = "E2202"
    summary = "vLLM does not take the engine's arguments for this model or machine"
    template = (
        "vLLM refuses to make this engine ({reason}); change engine_args.json's source, the build config."
    )


class VllmStartFailed(CodedError):
    code = "E2203"
    summary = "vLLM's engine core did not start"
    template = "vLLM's engine core did not start ({reason}); {remedy}."


class VllmRequestFailed(CodedError):
    code = "E2204"
    summary = "vLLM failed on this request alone"
    template = (
        "vLLM ended this request with {reason!r}; send it again, and if that fails too see Triton's log."
    )


class VllmEngineDied(CodedError):
    code = "E2205"
    summary = "vLLM's engine core died; it is restarted automatically"
    template = "vLLM's engine core died ({reason}); it is restarted automatically, send the request again."
