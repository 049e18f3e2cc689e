"""21xx, 22xx and 24xx: failures of an engine and of its processes."""

from __future__ import annotations

from errors.coded_error import CodedError, single_spaced


class EngineCrashed(CodedError):
    code = "E2107"
    summary = "The engine process ended while it worked on this request; it is restarted automatically"
    template = (
        "The {engine_kind} engine process ended ({reason}); "
        "it is restarted automatically, send the request again."
    )


class EngineStartFailed(CodedError):
    code = "E2108"
    summary = "The engine process could not load the engine"
    template = "The {engine_kind} engine could not start: {reason}"


class EngineFailed(CodedError):
    code = "E2109"
    summary = "The engine failed on this request only"
    template = "The {engine_kind} engine failed on this request: {reason}"


class EngineAsleep(CodedError):
    code = "E2114"
    summary = "The engine sleeps"
    template = "The engine sleeps; send the request again once POST /wake_up has woken it."


class GuideCheckFailed(CodedError):
    code = "E2115"
    summary = "The process that checks guides does not run"
    template = (
        "The engine server can't check the {guide_type} ({reason}); "
        "send the request again, and if that fails too see Triton's log."
    )


class VllmMissing(CodedError):
    code = "E2201"
    summary = "The engine environment has no vLLM that can be imported"
    template = (
        "vLLM can't be imported by {python} ({reason}); install requirements/vllm.txt there, "
        "or name the Python that has it in COG_TRITON_ENGINE_PYTHON."
    )


class VllmArgumentsRefused(CodedError):
    code = "E2202"
    summary = "vLLM rejects the engine's arguments for this model or machine"
    template = (
        "vLLM refuses to make this engine ({reason}); change engine_args.json's source, the build config."
    )


class VllmStartFailed(CodedError):
    code = "E2203"
    summary = "vLLM's engine core did not start"
    template = "vLLM's engine core did not start ({reason}); {remedy}."


class VllmRequestFailed(CodedError):
    code = "E2204"
    summary = "vLLM failed on this request only"
    template = (
        "vLLM ended this request with {reason!r}; send it again, and if that fails too see Triton's log."
    )


class VllmEngineDied(CodedError):
    code = "E2205"
    summary = "vLLM's engine core died; it is restarted automatically"
    template = "vLLM's engine core died ({reason}); it is restarted automatically, send the request again."


class VllmOrderFailed(CodedError):
    code = "E2206"
    summary = "vLLM failed to load or unload a LoRA adapter, to sleep or to wake"
    template = "vLLM failed to {action} ({reason}); see Triton's log."


class NodeRefused(CodedError):
    code = "E2207"
    summary = "A machine can't join an engine on several machines: its configuration or its rank is wrong"
    template = (
        "Node {rank} can't join the head ({reason}); start all nodes with the same engine, settings and "
        "versions, and each with a NODE_RANK of its own."
    )


class NodesMissing(CodedError):
    code = "E2208"
    summary = "The machines of an engine on several machines did not meet in time"
    template = (
        "The nodes of the engine did not meet within {timeout_s:g} s (engine_start_timeout_s in the server "
        "configuration): {reason}; start all NODES, and check HEAD_ADDRESS and the network between them."
    )


class RequestRefused(CodedError):
    code = "E2401"
    summary = "TensorRT-LLM rejected this request or failed on it"
    template = "TensorRT-LLM did not serve this request: {reason}"


class ImagesWaiting(CodedError):
    code = "E2209"
    summary = "Too many bytes of images wait to be prepared for the engine"
    template = "More than {max_bytes} bytes of images wait to be prepared; send the request again later."


class QueueFull(CodedError):
    code = "E2402"
    summary = "The engine's queue of waiting requests is full"
    template = (
        "The engine's queue is full ({max_queue_size} requests wait); "
        "send the request again later, or raise max_queue_size of the server configuration."
    )


class RankEnded(CodedError):
    code = "E2403"
    summary = "A process of an engine on several GPUs ended, and all its others with it"
    template = "The ranks of the {world_size}-GPU engine ended ({reason}); their last log lines: {log_tail}"


def as_coded(
    error: Exception, otherwise: type[EngineCrashed | EngineStartFailed | EngineFailed], engine_kind: str
) -> CodedError:
    """Return ``error`` if it has a code, else ``otherwise`` with its type and text."""
    if isinstance(error, CodedError):
        return error
    return otherwise(engine_kind=engine_kind, reason=f"{type(error).__name__}: {single_spaced(error)}")
